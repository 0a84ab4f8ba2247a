"""The ``rpcsys`` command: one name for the daemons, the queue, a model's run and the demo."""

from rpcsys import need_host

need_host(__name__)
