// The results of `starring bench ps`, as a table or as one JSON document. The columns are in docs/benches.md.
#ifndef STARRING_PS_BENCH_BENCH_TABLE_H
#define STARRING_PS_BENCH_BENCH_TABLE_H

#include "ps/bench/bench_measure.h"

struct cJSON;

void bench_table_head(const struct bench_request *q);
void bench_table_row(const struct bench_row *r);  // a line a medium
void bench_table_notes(void);
struct cJSON *bench_row_json(const struct bench_row *r);  // the caller's
// The document around the rows, which it takes over.
struct cJSON *bench_document(const struct bench_request *q, struct cJSON *rows);

#endif
