"""Manages boards from one machine: packs the runtime, copies it over ssh, installs, upgrades and removes it."""

from rpcsys import need_host

need_host(__name__)
