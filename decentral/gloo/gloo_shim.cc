// As much of Gloo as the engine uses, in C (gloo_shim.h).
#include "decentral/gloo/gloo_shim.h"

#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <cstdio>
#include <cstring>

namespace {
// Gloo begins its texts with a file and a line of its own, in brackets.
void keep(char *why, const std::exception &e) {
    const char *text = e.what(), *end = *text == '[' ? std::strstr(text, "] ") : nullptr;
    std::snprintf(why, GLOO_WHY, "%s", end ? end + 2 : text);
}

template <typename Do>
int guarded(char *why, Do &&call) {
    try {
        return call();
    } catch (const std::exception &e) {
        keep(why, e);
        return -1;
    }
}
}  // namespace

struct gloo_net {
    std::shared_ptr<gloo::transport::Device> device;
};

struct gloo_mesh {
    std::shared_ptr<gloo::transport::Context> context, apart;  // apart: without connections
};

struct gloo_message {
    gloo::transport::Context *context;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    bool sent;
};

extern "C" {

gloo_net *gloo_net_open(const char *address, char *why) {
    auto *n = new gloo_net;
    if (guarded(why, [&] { return n->device = gloo::transport::tcp::CreateDevice(address), 0; }) == 0)
        return n;
    delete n;
    return nullptr;
}

void gloo_net_close(gloo_net **n) {
    delete *n;
    *n = nullptr;
}

gloo_mesh *gloo_mesh_open(gloo_net *n, int rank, int size, double limit_s, char *addresses, char *why) {
    auto *m = new gloo_mesh;
    int rc = guarded(why, [&] {
        m->context = n->device->createContext(rank, size);
        m->apart = n->device->createContext(rank, size);
        m->context->setTimeout(
            std::chrono::milliseconds(static_cast<long>(limit_s * 1e3 / 5)));  // Gloo takes it five times
        for (int i = 0; i < size; i++) {
            if (i == rank) continue;
            auto bytes = m->context->createPair(i)->address().bytes();
            std::memcpy(addresses + static_cast<size_t>(i) * GLOO_ADDRESS_BYTES, bytes.data(), bytes.size());
        }
        return 0;
    });
    if (rc) gloo_mesh_close(&m);
    return m;
}

int gloo_mesh_connect(gloo_mesh *m, int peer, const char *address, char *why) {
    return guarded(why, [&] {
        auto &pair = m->context->getPair(peer);
        pair->connect(std::vector<char>(address, address + pair->address().bytes().size()));
        return 0;
    });
}

void gloo_mesh_close(gloo_mesh **m) {
    delete *m;
    *m = nullptr;
}

gloo_message *gloo_message_new(gloo_mesh *m, void *at, size_t bytes) {
    return new gloo_message{m->context.get(), m->apart->createUnboundBuffer(at, bytes), false};
}

int gloo_message_send(gloo_message *m, int to, uint64_t slot, char *why) {
    m->sent = true;
    return guarded(
        why, [&] { return m->context->getPair(to)->send(m->buffer.get(), slot, 0, m->buffer->size), 0; });
}

int gloo_message_receive(gloo_message *m, int from, uint64_t slot, char *why) {
    return guarded(
        why, [&] { return m->context->getPair(from)->recv(m->buffer.get(), slot, 0, m->buffer->size), 0; });
}

int gloo_message_wait(gloo_message *m, int limit_ms, char *why) {
    std::chrono::milliseconds limit(limit_ms);
    int rc = guarded(
        why, [&] { return (m->sent ? m->buffer->waitSend(limit) : m->buffer->waitRecv(limit)) ? 1 : 0; });
    return rc < 0 && std::strstr(why, "Timed out waiting") ? 0 : rc;
}

void gloo_message_free(gloo_message **m) {
    delete *m;
    *m = nullptr;
}
}
