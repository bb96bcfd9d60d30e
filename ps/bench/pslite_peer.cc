// ps-lite's processes, which `starring bench ps --peer` measures. The program contains the text of this file, and builds
// it against the given source folder. The processes answer the same lines as the star's (bench_roles.h).
//
// A server keeps the fp32 sum of each payload's elements. On a push it adds, rounds to the run's type and acknowledges;
// a pull is answered from the rounded values. There is no update, no clipping and no scheduler's decision: a star's server
// does more. Payloads are sent without a copy (ZPush, ZPull), one key each.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "ps/job/ps.h"

namespace {

struct Seat {
    std::string role, address;
    int control = -1, rank = 0, keys = 0;
    int kind, medium, dtype, servers, workers, threads;
    size_t bytes;
};

int64_t now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

int64_t wait_until(int64_t ns) {
    timespec t = {time_t(ns / 1000000000), long(ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr)) continue;
    return now();
}

void say(const Seat &s, std::string line) {
    line += '\n';
    if (write(s.control, line.data(), line.size()) != ssize_t(line.size())) exit(1);
}

bool hear(const Seat &s, std::string *line) {
    char c;
    for (line->clear(); read(s.control, &c, 1) == 1; *line += c)
        if (c == '\n') return true;
    return false;
}

float widen(float x) { return x; }
float widen(uint16_t x) {
    uint32_t bits = uint32_t(x) << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
void narrow(float x, float *out) { *out = x; }
void narrow(float x, uint16_t *out) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    *out = uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <typename Val> struct Sum {
    std::vector<float> total;
    ps::SArray<Val> rounded;
    void add(const Val *in, size_t n) {
        total.resize(n);
        if (rounded.size() != n) rounded.resize(n);
        float *sum = total.data();
        Val *out = rounded.data();
        for (size_t i = 0; i < n; i++) {
            sum[i] += widen(in[i]);
            narrow(sum[i], &out[i]);
        }
    }
};

template <typename Val> void serve() {
    auto *server = new ps::KVServer<Val>(0);
    auto *sums = new std::unordered_map<ps::Key, Sum<Val>>;
    server->set_request_handle([sums](const ps::KVMeta &meta, const ps::KVPairs<Val> &in, ps::KVServer<Val> *self) {
        Sum<Val> &sum = (*sums)[in.keys[0]];
        ps::KVPairs<Val> answer;
        if (meta.push) sum.add(in.vals.data(), in.vals.size());
        if (meta.pull) {
            answer.keys = in.keys;
            answer.vals = sum.rounded;
        }
        self->Response(meta, answer);
    });
    ps::RegisterExitCallback([server] { delete server; });
}

template <typename Val> class Worker {
   public:
    explicit Worker(const Seat &s) : seat(s), kv(0, 0) {
        const auto &ranges = ps::Postoffice::Get()->GetServerKeyRanges();
        for (int i = 0; i < s.keys; i++) {
            size_t n = s.bytes / sizeof(Val);
            keys.push_back(ps::SArray<ps::Key>({ps::Key(ranges[i % s.servers].begin() + i)}));
            gradients.push_back(ps::SArray<Val>(n, Val(0)));
            weights.push_back(ps::SArray<Val>(n, Val(0)));
            for (size_t k = 0; k < n; k++) narrow(1e-3f * float(k % 1000), &gradients.back()[k]);
        }
    }
    void obey(const std::string &line) {
        long long start, rest;
        int steps;
        if (sscanf(line.c_str(), "step %lld", &start) == 1)
            step(start);
        else if (sscanf(line.c_str(), "pull %lld %lld", &start, &rest) == 2)
            pulls_alone(start, rest);
        else if (sscanf(line.c_str(), "latency %lld %d", &start, &steps) == 2)
            latency(start, steps);
        else
            exit(1);
    }

   private:
    int push(int i) { return kv.ZPush(keys[i], gradients[i]); }
    int pull(int i) { return kv.ZPull(keys[i], &weights[i]); }
    void all(int (Worker::*move)(int)) {
        std::vector<int> under_way;
        for (int i = 0; i < seat.keys; i++) under_way.push_back((this->*move)(i));
        for (int request : under_way) kv.Wait(request);
    }
    void step(int64_t start) {
        int64_t begin = wait_until(start);
        all(&Worker::push);
        int64_t summed = now();
        all(&Worker::pull);
        say(seat, std::to_string(begin) + " " + std::to_string(summed) + " " + std::to_string(now()));
    }
    void pulls_alone(int64_t start, int64_t rest) {
        wait_until(start);
        all(&Worker::push);
        int64_t begin = wait_until(start + rest);
        all(&Worker::pull);
        say(seat, std::to_string(begin) + " " + std::to_string(now()));
    }
    void latency(int64_t start, int steps) {
        std::string line;
        wait_until(start);
        for (int i = 0; i < steps * seat.servers * seat.threads; i++) {
            int64_t begin = now();
            kv.Wait(push(i % (seat.servers * seat.threads)));
            int64_t acknowledged = now();
            kv.Wait(pull(i % (seat.servers * seat.threads)));
            line += std::to_string(acknowledged - begin) + " " + std::to_string(now() - begin) + " ";
        }
        say(seat, line);
    }
    const Seat &seat;
    ps::KVWorker<Val> kv;
    std::vector<ps::SArray<ps::Key>> keys;
    std::vector<ps::SArray<Val>> gradients, weights;
};

template <typename Val> void work(const Seat &s) {
    Worker<Val> w(s);
    std::string line;
    say(s, std::to_string(getpid()));
    while (hear(s, &line) && line != "end") w.obey(line);
    say(s, "done");
}

int free_port() {
    sockaddr_in at = {};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, reinterpret_cast<sockaddr *>(&at), sizeof at)) exit(1);
    getsockname(fd, reinterpret_cast<sockaddr *>(&at), &size);
    close(fd);
    return ntohs(at.sin_port);
}

void set(const char *name, const std::string &value) { setenv(name, value.c_str(), 1); }

}  // namespace

int main(int argc, char **argv) {
    Seat s;
    for (int i = 1; i + 1 < argc; i++) {
        std::string name = argv[i], value = argv[i + 1];
        if (name == "--as") s.role = value;
        if (name == "--address") s.address = value;
        if (name == "--control") s.control = atoi(value.c_str());
        if (name == "--keys") s.keys = atoi(value.c_str());
        if (name == "--plan" && sscanf(value.c_str(), "%d,%d,%d,%zu,%d,%d,%d", &s.kind, &s.medium, &s.dtype, &s.bytes,
                                       &s.servers, &s.workers, &s.threads) != 7)
            return 1;
    }
    if (s.role == "scheduler") s.address = std::to_string(free_port());
    set("DMLC_ROLE", s.role);
    set("DMLC_PS_ROOT_URI", "127.0.0.1");
    set("DMLC_NODE_HOST", "127.0.0.1");
    set("DMLC_PS_ROOT_PORT", s.address);
    set("DMLC_NUM_SERVER", std::to_string(s.servers));
    set("DMLC_NUM_WORKER", std::to_string(s.workers));
    if (s.role != "worker") say(s, std::to_string(getpid()) + " " + s.address);
    ps::Start(0);
    bool wide = s.dtype == 0;
    if (s.role == "server") wide ? serve<float>() : serve<uint16_t>();
    if (s.role == "worker") wide ? work<float>(s) : work<uint16_t>(s);
    ps::Finalize(0, true);
    return 0;
}
