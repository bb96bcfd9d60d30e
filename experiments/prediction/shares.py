"""Measures how connections that begin together share a congested link, and the CPU time of a byte. This program is one end of the
measurement.

    shares.py receive COUNT SECONDS    listens at port 9100 for COUNT connections; prints the bytes of each in every window, as JSON
    shares.py send ADDRESS SECONDS     connects, and sends for SECONDS

calibrate.py starts both in a netlab. They use plain sockets, and not this project's transport.
"""
import json
import selectors
import socket
import statistics
import sys
import time

PORT, WINDOW = 9100, 0.2
FIRST = 3               # the number of first windows in which shares are measured: TCP's windows have not settled yet


def receive(count, seconds):
    listener = socket.create_server(("", PORT), backlog=count)
    ready = selectors.DefaultSelector()
    for i in range(count):
        connection, _ = listener.accept()
        ready.register(connection, selectors.EVENT_READ, i)
    for key in list(ready.get_map().values()):   # all connections are open: lets all senders begin
        key.fileobj.sendall(b"1")
    windows, began, left = [[0] * count for _ in range(round(seconds / WINDOW))], None, count
    while left:
        for key, _ in ready.select():
            data, now = key.fileobj.recv(1 << 18), time.monotonic()
            began = began or now
            if not data:
                ready.unregister(key.fileobj)
                left -= 1
            windows[min(int((now - began) / WINDOW), len(windows) - 1)][key.data] += len(data)
    print(json.dumps(windows))


def send(address, seconds):
    until = time.monotonic() + 10
    while True:
        try:
            connection = socket.create_connection((address, PORT))
            break
        except OSError:   # the other end starts at the same time
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
    connection.recv(1)
    until, data = time.monotonic() + seconds, bytes(1 << 16)
    while time.monotonic() < until:
        connection.sendall(data)


def spread(windows):
    """Standard deviation / mean of the connections' bytes in a window, the mean over the first windows."""
    return statistics.fmean(statistics.pstdev(w) / statistics.fmean(w) for w in windows[:FIRST])


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(int(sys.argv[2]), float(sys.argv[3]))
    else:
        send(sys.argv[2], float(sys.argv[3]))
