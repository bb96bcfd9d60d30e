// The keys of a star's roles (CURVE, public and secret, 32 bytes each) and the files they lie in. A directory of keys
// (`starring keygen DIR`) has a file for each role, which its owner alone may read, and public.keys (below),
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

#include "ps/job/ps.h"

#define TRUST_KEY_BYTES 32
#define TRUST_NAME_MAX  32  // "worker 65535", with the closing zero
#define TRUST_PUBLIC    "public.keys"
#define TRUST_RANKS_MAX 65536  // of one role

struct trust_pair {
    uint8_t public_key[TRUST_KEY_BYTES], secret_key[TRUST_KEY_BYTES];
};

// The role that the key belongs to: PS_SCHEDULER (rank 0), PS_SERVER or PS_WORKER.
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

// Whether a directory of keys is this user's or root's, and nobody else replaces files in it. 0, or -1 after logging; one that
// is not there: 0.
int trust_dir_check(const char *dir);

// ---- the list of public keys: which one is which role's, DIR/public.keys. A key that is not in it may not
// join.
//
//     starring public keys 1
//     scheduler rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7
//     server 0 ...
//     worker 0 ...
//
// A role has one key, and a key one role. No sockets; read once, then constant: any thread may look things up.
struct allow_list;
struct allow_list *allow_list_create(void);
// 0, or -1: the role or the key is in it already. Logs nothing.
int allow_list_add(struct allow_list *a, struct trust_owner o, const uint8_t key[TRUST_KEY_BYTES]);
// DIR/public.keys, which others than its owner may read and not write. NULL after logging.
struct allow_list *allow_list_read(const char *dir);
// Writes DIR/public.keys. One that is there stays, and is an error. 0, or -1 after logging.
int allow_list_write(const struct allow_list *a, const char *dir);
void allow_list_destroy(struct allow_list **a);

// The owner of a key; false: it may not join.
bool allow_list_owner(const struct allow_list *a, const uint8_t key[TRUST_KEY_BYTES],
                      struct trust_owner *out);
// The public key of a role; NULL: it has none.
const uint8_t *allow_list_key(const struct allow_list *a, struct trust_owner o);
int allow_list_count(const struct allow_list *a, enum ps_role role);

// ---- Z85 (ZeroMQ's RFC 32): 4 bytes as 5 printable characters, which is how people see ZeroMQ's keys.
#define Z85_KEY_CHARS 40  // of 32 bytes
// 32 bytes as 40 characters and a zero.
void z85_key_text(const uint8_t key[32], char text[Z85_KEY_CHARS + 1]);
// The same read. 0, or -1: not exactly 40 characters of Z85, or a number too large.
int z85_key_read(const char *text, uint8_t key[32]);

#endif
