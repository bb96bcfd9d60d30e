// How a shard thread's time is divided. The thread is at
//
//     receive   taking messages off the sockets      update   the optimizer; new weights in the key's buffer
//     sum       adding, rounding, squares            reply    answers: acknowledgements, weights, sums
//     idle: hold, while there are gradients of a step that waits for more of them or for the scheduler's decision;
//     wait, while there are none
#ifndef STARRING_PS_SERVER_SERVER_TIME_H
#define STARRING_PS_SERVER_SERVER_TIME_H

enum server_part {
    SERVER_RECEIVE,
    SERVER_SUM,
    SERVER_HOLD,
    SERVER_WAIT,
    SERVER_UPDATE,
    SERVER_REPLY,
    SERVER_PARTS
};

#define SERVER_PICTURED 3  // last steps of the run in a server's timeline

#endif
