// A disk that fails, or a process that dies, at one of its calls; and one that remembers what a power cut would take.
#ifndef STARRING_TESTS_STATE_FAULTY_DISK_H
#define STARRING_TESTS_STATE_FAULTY_DISK_H

#include "tests/state/state_helper.h"

// ---------------------------------------------------------------- calls that are counted
enum fault { FAULT_NONE, FAULT_DIE, FAULT_ONCE, FAULT_FROM_THEN_ON };
static struct {
    enum fault kind;
    int at, calls;     // at: the call, from 0 on, that is the last, or the (first) one to fail
    int code;          // errno
    bool no_exchange;  // a file system that cannot exchange two names
    size_t most;       // bytes that a write takes; 0: all
} faulty;

#define DIED 42

// Whether this call fails. A process that dies does so in its own way: `half` is what it may do before.
static bool due(void) {
    int call = faulty.calls++;
    bool now = call == faulty.at || (call > faulty.at && faulty.kind == FAULT_FROM_THEN_ON);
    if (faulty.kind == FAULT_NONE || !now) return false;
    if (faulty.kind == FAULT_DIE) _exit(DIED);
    errno = faulty.code;
    return true;
}

static int f_open(const char *path, int flags, mode_t mode) {
    return due() ? -1 : disk_system.open(path, flags, mode);
}
static ssize_t f_write(int fd, const void *data, size_t bytes) {
    if (faulty.kind == FAULT_DIE && faulty.calls == faulty.at && write(fd, data, bytes / 2) < 0) return -1;
    if (due()) return -1;
    return write(fd, data, faulty.most && faulty.most < bytes ? faulty.most : bytes);
}
static int f_reserve(int fd, off_t bytes) { return due() ? -1 : disk_system.reserve(fd, bytes); }
static int f_fsync(int fd) {
    return due() ? -1 : (fd < 0 ? -1 : 0);
}  // for a process's death it is not needed
static int f_rename(const char *from, const char *to) { return due() ? -1 : rename(from, to); }
static int f_exchange(const char *a, const char *b) {
    if (due()) return -1;
    if (!faulty.no_exchange) return disk_system.exchange(a, b);
    errno = EINVAL;
    return -1;
}
static int f_unlink(const char *path) { return due() ? -1 : unlink(path); }
static int f_mkdir(const char *path, mode_t mode) { return due() ? -1 : mkdir(path, mode); }
static int f_rmdir(const char *path) { return due() ? -1 : rmdir(path); }

static const struct disk_ops faulty_disk = {f_open,     f_write,  f_reserve, f_fsync, f_rename,
                                            f_exchange, f_unlink, f_mkdir,   f_rmdir};

static inline void faulty_begin(enum fault kind, int at, int code) {
    faulty.kind = kind;
    faulty.at = at;
    faulty.code = code;
    faulty.calls = 0;
    disk_replace(&faulty_disk);
}
static inline void faulty_end(void) {
    faulty.kind = FAULT_NONE;
    faulty.most = 0;
    disk_replace(&disk_system);
}

// ---------------------------------------------------------------- what is not on disk yet
// Paths whose bytes (files) or names (directories) a power cut would take. Each rule of the commit is asked for where it
// matters: when a name is given or a file removed.
#define DIRTY_MAX 64
static struct {
    char *path[DIRTY_MAX];
    char opened[64][256];  // by file descriptor
    int commits, removals;
} power;

static bool is_dirty(const char *path) {
    for (int i = 0; i < DIRTY_MAX; i++)
        if (power.path[i] && strcmp(power.path[i], path) == 0) return true;
    return false;
}
static void set_dirty(const char *path, bool dirty) {
    for (int i = 0; i < DIRTY_MAX; i++)
        if (power.path[i] && strcmp(power.path[i], path) == 0) {
            free(power.path[i]);
            power.path[i] = NULL;
        }
    for (int i = 0; dirty && i < DIRTY_MAX; i++)
        if (!power.path[i]) {
            power.path[i] = xstrdup(path);
            return;
        }
    assert_false(dirty);
}
static void parent_of(char out[256], const char *path) {
    snprintf(out, 256, "%s", path);
    *strrchr(out, '/') = '\0';
}
static void parent_dirty(const char *path) {
    char above[256];
    parent_of(above, path);
    set_dirty(above, true);
}
// Files below a directory are below another.
static void move_marks(const char *from, const char *to) {
    size_t n = strlen(from);
    for (int i = 0; i < DIRTY_MAX; i++) {
        if (!power.path[i] || strncmp(power.path[i], from, n) != 0 ||
            (power.path[i][n] && power.path[i][n] != '/'))
            continue;
        char *moved = xasprintf("%s%s", to, power.path[i] + n);
        free(power.path[i]);
        power.path[i] = moved;
    }
}
// Neither the directory nor a file in it.
static void must_be_on_disk(const char *dir) {
    size_t n = strlen(dir);
    for (int i = 0; i < DIRTY_MAX; i++)
        if (power.path[i] && strncmp(power.path[i], dir, n) == 0 &&
            (!power.path[i][n] || power.path[i][n] == '/'))
            fail_msg("%s gets its name while %s is not on disk", dir, power.path[i]);
}

static int p_open(const char *path, int flags, mode_t mode) {
    bool made = (flags & O_CREAT) && access(path, F_OK) != 0;
    int fd = disk_system.open(path, flags, mode);
    assert_in_range(fd, 0, 63);
    snprintf(power.opened[fd], sizeof *power.opened, "%s", path);
    if (made) parent_dirty(path);
    if (flags & O_CREAT) set_dirty(path, true);
    return fd;
}
static ssize_t p_write(int fd, const void *data, size_t bytes) {
    set_dirty(power.opened[fd], true);
    return write(fd, data, bytes);
}
static int p_reserve(int fd, off_t bytes) { return disk_system.reserve(fd, bytes); }
static int p_fsync(int fd) {
    set_dirty(power.opened[fd], false);
    return 0;
}
static bool names_checkpoint(const char *path) { return strncmp(strrchr(path, '/'), "/step-", 6) == 0; }
static int p_rename(const char *from, const char *to) {
    if (names_checkpoint(to)) {
        must_be_on_disk(from);
        power.commits++;
    }
    if (ends_with(from, ".part")) assert_false(is_dirty(from));
    if (ends_with(to, ".json") && !ends_with(to, "manifest.json")) {  // the sidecar speaks for the file
        char *file = xasprintf("%.*s.safetensors", (int)(strlen(to) - 5), to);
        assert_false(is_dirty(file));
        free(file);
    }
    move_marks(from, to);
    parent_dirty(to);
    return rename(from, to);
}
static int p_exchange(const char *a, const char *b) {
    must_be_on_disk(a);
    power.commits++;
    parent_dirty(b);
    return disk_system.exchange(a, b);
}
static int p_unlink(const char *path) {
    char dir[256], all[256];
    parent_of(dir, path);
    parent_of(all, dir);
    // A power cut may keep this and take the rename before it: then a step-N lacks a file.
    if (ends_with(dir, ".gone") && is_dirty(all)) fail_msg("%s is removed before its name is on disk", dir);
    power.removals += ends_with(dir, ".gone");
    if (access(path, F_OK) == 0) parent_dirty(path);
    set_dirty(path, false);
    return unlink(path);
}
static int p_mkdir(const char *path, mode_t mode) {
    int rc = mkdir(path, mode);
    if (rc == 0) parent_dirty(path);
    return rc;
}
static int p_rmdir(const char *path) {
    set_dirty(path, false);
    parent_dirty(path);
    return rmdir(path);
}
static const struct disk_ops power_disk = {p_open,     p_write,  p_reserve, p_fsync, p_rename,
                                           p_exchange, p_unlink, p_mkdir,   p_rmdir};

static inline void power_end(void) {
    disk_replace(&disk_system);
    for (int i = 0; i < DIRTY_MAX; i++) {
        free(power.path[i]);
        power.path[i] = NULL;
    }
}

#endif
