// Where the time of a server's shard threads goes: their diaries (server_parts.h), added up
// for the report and written for pictures.
#ifndef STARRING_PS_SERVER_SERVER_TIME_H
#define STARRING_PS_SERVER_SERVER_TIME_H

#include "ps/diary/diary.h"
#include "ps/net/login.h"
#include "ps/server/server_parts.h"
#include "ps/shard_map.h"
#include "shared/report/rank_report.h"

#define SERVER_PICTURED 3  // steps of the run's end in a server's timeline

// A shard's diary; the thread's, until it has ended. Never NULL.
struct diary *server_diary(const struct config *c, const struct shard_map *map, int shard);
// Adds a shard's time to its server's.
void server_time_add(struct server_time *sum, const struct diary *d);
// Leaves what server id->rank wrote down in the run directory. diaries: (count), a shard's each. 0, or -1 after
// logging.
struct server_time_files {
    const struct config *config;
    const struct shard_map *map;
    const struct ps_identity *id;
    const char *dir;  // NULL: nothing is written
    struct diary **diaries;
    int count;
};
int server_time_write(const struct server_time_files *f);

#endif
