// Which public key is which role's: DIR/public.keys of a directory of keys (key_files.h). What is not in it may not
// join.
//
//     starring public keys 1
//     scheduler rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7
//     server 0 ...
//     worker 0 ...
//
// A role has one key, and a key one role. No sockets; read once, then constant: any thread may look things up.
#ifndef STARRING_PS_TRUST_ALLOW_LIST_H
#define STARRING_PS_TRUST_ALLOW_LIST_H

#include "ps/trust/key_files.h"

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

#endif
