"""The SimGrid calls that differ between its releases. Only this file checks the release; calls that all releases share are in network.py.

    3.32               Debian 12                   zones are created separately and get a parent; routes connect net points
    3.35, 3.36         Ubuntu 24.04                the same; activities are awaited as a set
    4.0, 4.1           Debian 13, Ubuntu 26.04     a zone creates its contents; routes connect hosts, or zones that have gateways

`grid()` returns a Grid. Its `sg` is SimGrid's module.
"""
import functools
import importlib
import os
import sys

from . import CannotPredict


@functools.lru_cache(maxsize=None)
def grid():
    """The Grid of this Python's SimGrid. When SimGrid is loaded it prints a line on stderr about its threads, which is suppressed."""
    sys.stderr.flush()
    stderr, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        found = importlib.import_module("simgrid")
    except ImportError:
        raise CannotPredict("this Python lacks simgrid: run `make deps`, or apt install python3-simgrid, and use /usr/bin/python3") from None
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nothing)
    lacks = {}
    for kind in (Grid, Grid3):
        lacks[kind] = [call for call in kind.NEEDS if not hasattr(getattr(found, call.split(".")[0], None), call.split(".")[1])]
        if not lacks[kind]:
            return kind(found)
    raise CannotPredict(f"SimGrid {found.simgrid_version} ({found.__file__}) has no {lacks[Grid][0]}, which 4.0 has, and no {lacks[Grid3][0]}, which 3.32 "
                        "has: releases 3.32 to 4.1 are known")


class Grid:
    """The calls of SimGrid 4.0 and later."""
    NEEDS = "NetZone.add_netzone_star", "ActivitySet.wait_any_for", "Comm.sendto_async"

    def __init__(self, sg):
        self.sg, self.version = sg, sg.simgrid_version

    # ---- zones, and what is in them
    def root(self, engine):
        return engine.netzone_root

    def star(self, parent, name):
        return parent.add_netzone_star(name)

    def cluster(self, parent, kind, shape, leaf, rate, latency):
        """Makes a fatTree, torus or dragonfly, which the caller seals. leaf(zone) makes and returns the zone of the next leaf, with its
        entry point set."""
        zone = getattr(parent, "add_netzone_" + kind)("network", *shape, rate, latency, self.sg.Link.SharingPolicy.SPLITDUPLEX)
        return zone.set_netzone_cb(lambda zone, *_: leaf(zone))

    def enter(self, zone, point):
        """Sets the net point, a router's or a host's, through which routes enter and leave the zone."""
        zone.set_gateway(point)

    def make(self, zone, what, *args):
        """Makes a host (name, speed), router (name), link or split_duplex_link (name, bytes per second) in the zone."""
        return getattr(zone, "add_" + what)(*args)

    def route(self, zone, end, link, *direction):
        """Adds the route from a host or zone of a star to all others, and back."""
        zone.add_route(end, None, [self.sg.LinkInRoute(link, *direction)], True)

    # ---- what goes on
    def actor(self, engine, host, name, function, *args):
        if hasattr(host, "add_actor"):   # since 4.1
            host.add_actor(name, function, *args)
        else:
            engine.add_actor(name, host, function, *args)

    def wait_any(self, flows, seconds):
        """Waits until one of the flows has ended, at most so many seconds (None: no limit). Returns whether one has ended."""
        flows = self.sg.ActivitySet(flows)
        if seconds is None:
            flows.wait_any()
            return True
        try:
            flows.wait_any_for(seconds)
        except self.sg.TimeoutException:
            return False
        return True


class Grid3(Grid):
    """The calls of SimGrid 3.32 to 3.36."""
    NEEDS = "NetZone.create_star_zone", "NetZone.set_parent", "Comm.sendto_async"

    def root(self, engine):
        self.entries = {}   # {a zone's name: the net point of its entry}
        return self.sg.NetZone.create_star_zone("all")

    def star(self, parent, name):
        zone = self.sg.NetZone.create_star_zone(name)
        zone.set_parent(parent)
        return zone

    def cluster(self, parent, kind, shape, leaf, rate, latency):
        def leaf_of(zone, *_):
            made = leaf(zone)
            return made if hasattr(made, "set_gateway") else (made.netpoint, self.entries[made.name])   # since 3.35, before
        shape = {"fatTree": self.sg.FatTreeParams, "torus": lambda sizes: sizes, "dragonfly": self.sg.DragonflyParams}[kind](*shape)
        return getattr(self.sg.NetZone, f"create_{kind}_zone")("network", parent, shape, self.sg.ClusterCallbacks(leaf_of, None, None), rate, latency,
                                                               self.sg.Link.SharingPolicy.SPLITDUPLEX)

    def enter(self, zone, point):
        self.entries[zone.name] = point
        if hasattr(zone, "set_gateway"):
            zone.set_gateway(point)

    def make(self, zone, what, *args):
        return getattr(zone, "create_" + what)(*args)

    def route(self, zone, end, link, *direction):
        zone.add_route(end.netpoint, None, self.entries.get(end.name), None, [self.sg.LinkInRoute(link, *direction)], True)

    def actor(self, engine, host, name, function, *args):
        self.sg.Actor.create(name, host, function, *args)

    def wait_any(self, flows, seconds):
        if hasattr(self.sg, "ActivitySet"):
            return super().wait_any(flows, seconds)
        if seconds is None:
            return self.sg.Comm.wait_any(flows) >= 0
        return self.sg.Comm.wait_any_for(flows, seconds) >= 0
