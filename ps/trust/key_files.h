// The keys of a star's roles (CURVE, public and secret, 32 bytes each) and the files they lie in. A directory of keys
// (`starring keygen DIR`) has a file for each role, which its owner alone may read, and public.keys (allow_list.h),
// which is no secret:
//
//     DIR/scheduler.key  DIR/server-0.key ..  DIR/worker-0.key ..      one role's pair: 0600
//     DIR/public.keys                                                 which public key is which role's
//
// A role reads its own file and public.keys; the other files need not be on its machine.
//
//     starring key 1
//     role worker 3
//     public rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7
//     secret JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6
//
// No sockets, no state. Errors name the file.
#ifndef STARRING_PS_TRUST_KEY_FILES_H
#define STARRING_PS_TRUST_KEY_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ps/net/wire.h"

#define TRUST_KEY_BYTES 32
#define TRUST_NAME_MAX  32  // "worker 65535", with the closing zero
#define TRUST_PUBLIC    "public.keys"
#define TRUST_RANKS_MAX 65536  // of one role

struct trust_pair {
    uint8_t public_key[TRUST_KEY_BYTES], secret_key[TRUST_KEY_BYTES];
};

// Whose key it is: PS_SCHEDULER (rank 0), PS_SERVER or PS_WORKER.
struct trust_owner {
    enum ps_role role;
    int rank;
};

bool trust_owner_same(struct trust_owner a, struct trust_owner b);
// "scheduler", "server 0", "worker 3". Returns text.
const char *trust_owner_name(struct trust_owner o, char text[TRUST_NAME_MAX]);
// The same words read: 0, or -1 where they are none of these. Logs nothing.
int trust_owner_read(const char *text, struct trust_owner *out);
// DIR/worker-3.key (malloc'd).
char *trust_key_path(const char *dir, struct trust_owner o);

int trust_pair_make(
    struct trust_pair *out);  // a new one, of the system's random numbers; 0, or -1 after logging
void trust_pair_forget(struct trust_pair *p);  // overwrites it

// Writes DIR's file of that role. One that is there stays, and is an error. 0, or -1 after logging.
int trust_key_write(const char *dir, struct trust_owner o, const struct trust_pair *p);
// Reads it. Refused: what is not a file of this user's (or root's), what others may read, another role's key, a damaged
// one. 0, or -1 after logging.
int trust_key_read(const char *dir, struct trust_owner o, struct trust_pair *out);
// The rank of the only key of that role in DIR: who was given one key need not say which. -1 after logging where there
// is none, or more than one.
int trust_key_only(const char *dir, enum ps_role role);

// A small text file whole (malloc'd, *bytes long, then a zero): a plain file of this user's or root's. Its mode may
// have none of the bits in `forbidden`; what those allow is said in words ("others than its owner can read it"). NULL
// after logging.
struct trust_file {
    const char *path;
    size_t bytes_max;
    unsigned forbidden;
    const char *words;
};
// Whether a directory of keys is this user's or root's, and nobody else replaces files in it. 0, or -1 after logging; one that
// is not there: 0.
int trust_dir_check(const char *dir);
// Of a file whose first line is not the one that `ours` has. -1 after logging.
int trust_file_other(const char *path, const char *text, const char *ours);
char *trust_file_read(const struct trust_file *f, size_t *bytes);
// The whole text as a new file of that mode: one that is there is an error. 0, or -1 after logging.
int trust_file_write(const char *path, const char *text, unsigned mode);

#endif
