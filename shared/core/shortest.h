// Floating-point numbers as the shortest decimal text that reads back as exactly the same number.
#ifndef STARRING_SHARED_CORE_SHORTEST_H
#define STARRING_SHARED_CORE_SHORTEST_H

void shortest_f32(char text[32], float x);
void shortest_f64(char text[32], double x);

#endif
