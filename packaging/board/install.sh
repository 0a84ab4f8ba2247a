#!/bin/sh
# Install this version of rpcsys' device server, or upgrade to it; see --help.
#
# The version in use is the folder that /opt/rpcsys/current points to. A new version is copied beside it, verified,
# and then linked in one step: after a power cut at any time the board starts the old or the new version. Only then
# the old server drains, its sessions end, and the new one starts. POSIX sh, also BusyBox's.
set -eu

usage() {
    cat <<'END'
install.sh --key KEY [--tracker HOST:PORT] [any flag of rpcsys-server]
    install, and serve now and after every start of this board
install.sh
    upgrade what is installed; every server keeps its flags
install.sh --uninstall [--name NAME]
    remove everything, or one of several servers

--root DIR          install below DIR; for an image, with --no-start
--name NAME         one of several servers on this board (default: the key)
--drain-timeout S   how long running sessions may go on at an upgrade (default: 3600)
--no-start          start nothing
--no-self-test      install even if the self-test finds something broken
END
}

fail() {
    echo "install.sh: error: $1" >&2
    exit "${2:-1}"
}

here=$(dirname "$(readlink -f "$0")")
asked=${RPCSYS_PYTHON:-}
root= name= key= flags= drain=3600 start=yes tested=yes action=install
newline='
'

value() { [ $# -ge 2 ] || fail "$1 wants a value; see --help" 2; }
while [ $# -gt 0 ]; do
    case $1 in
        --help) usage; exit 0 ;;
        --uninstall) action=uninstall ;;
        --no-start) start= ;;
        --no-self-test) tested= ;;
        --root) value "$@"; root=$(readlink -f "$2") || fail "--root $2: there is no such folder" 2; shift ;;
        --name) value "$@"; name=$2; shift ;;
        --drain-timeout) value "$@"; drain=$2; shift ;;
        --key) value "$@"; key=$2; flags="$flags--key$newline$2$newline"; shift ;;
        *) flags="$flags$1$newline" ;;
    esac
    shift
done
[ -z "$flags" ] || [ -n "$key" ] || fail "--key says what kind of device this is, such as --key rpi4" 2
name=$(printf %s "${name:-$key}" | tr -c 'A-Za-z0-9._-' -)

image= # an image of another board: its processor may differ from this machine's
[ -z "$root" ] || [ -n "$start" ] || image=image

base=$root/opt/rpcsys
settings=$root/etc/rpcsys
if [ -z "$image" ] && [ -f "$settings/environment" ]; then # RPCSYS_PYTHON, TMPDIR and the like, as the servers have them
    set -a
    . "$settings/environment"
    set +a
fi
python=${asked:-${RPCSYS_PYTHON:-python3}}
export RPCSYS_PYTHON="$python"
init=$root/etc/init.d/rpcsys-server
units=$root/etc/systemd/system
systemd=
[ -n "$root" ] || [ ! -d /run/systemd/system ] || [ ! -f "$here/systemd/rpcsys-server@.service" ] || systemd=yes

names() { # the configured servers
    for file in "$settings"/*.flags; do
        [ ! -f "$file" ] || basename "$file" .flags
    done
}

replace() { # FROM TO: in one step (`mv` of a link to a folder would move it into the folder)
    "$python" -c 'import os, sys; os.replace(sys.argv[1], sys.argv[2])' "$1" "$2"
}

stop_servers() { # (drain SECONDS | stop) [NAME]
    if [ -n "$systemd" ]; then
        for each in ${3:-$(names)}; do
            [ "$1" != drain ] || systemctl kill --kill-who=main --signal=USR1 "rpcsys-server@$each" 2>/dev/null || :
            left=${2:-0}
            while [ "$left" -gt 0 ] && systemctl --quiet is-active "rpcsys-server@$each"; do
                sleep 1
                left=$((left - 1))
            done
            systemctl stop "rpcsys-server@$each"
        done
    elif [ -x "$init" ]; then
        "$init" "$@"
    fi
}

start_servers() {
    [ -n "$start" ] || return 0
    if [ -n "$systemd" ]; then
        systemctl daemon-reload
        for each in $(names); do
            systemctl --quiet enable --now "rpcsys-server@$each" && continue
            said=$(journalctl --quiet --no-pager --lines=1 --output=cat "_SYSTEMD_UNIT=rpcsys-server@$each.service" || :)
            fail "$each is installed and does not start: ${said:-see journalctl -u rpcsys-server@$each}"
        done
    else
        "$init" start
    fi
}

uninstall_one() {
    if [ -n "$systemd" ]; then
        systemctl --quiet disable --now "rpcsys-server@$name"
        rm -rf "$units/rpcsys-server@$name.service.d"
    elif [ -x "$init" ]; then
        "$init" stop "$name"
    fi
    rm -f "$settings/$name.flags" "$settings/$name.lab.json" "$root/var/lib/rpcsys/$name.lab.json"
    rm -f "$root/var/log/rpcsys/$name".log*
    echo "$name is removed"
}

uninstall() {
    stop_servers stop
    made=$(cat "$base/folders" 2>/dev/null || :)
    if [ -n "$systemd" ]; then
        for each in $(names); do systemctl --quiet disable "rpcsys-server@$each" || :; done
    fi
    rm -rf "$base" "$root/run/rpcsys" "$root/var/log/rpcsys"
    rm -f "$settings"/*.flags "$settings"/*.lab.json "$settings"/*.new "$settings/environment"
    rm -f "$root/var/lib/rpcsys"/*.lab.json # credentials that were renewed
    rmdir "$settings" "$root/var/lib/rpcsys" 2>/dev/null || : # a tracker or proxy here has files there, too
    rm -f "$init" "$root/etc/init.d/S90rpcsys-server" "$units/rpcsys-server@.service" "$root/usr/local/bin/rpcsys-server"
    rm -rf "$units"/rpcsys-server@*.service.d # of `systemctl edit`
    [ -n "$root" ] || [ -n "$systemd" ] || ! command -v update-rc.d >/dev/null || update-rc.d rpcsys-server remove
    [ -z "$systemd" ] || systemctl daemon-reload
    for each in $made; do rmdir "$root$each" 2>/dev/null || :; done
    echo "rpcsys is removed"
}

record() { # the folders that are made here and at the start, inner ones first: they go with the last server, if empty
    [ ! -f "$base/folders" ] || return 0
    made=
    for each in /opt /usr/local/bin /usr/local /usr /etc/init.d /etc /var/log /var /run /; do
        [ -d "$root$each" ] || made="$made$each$newline"
    done
    mkdir -p "$base"
    printf %s "$made" >"$base/folders.new"
    replace "$base/folders.new" "$base/folders"
}

copy() { # the new version, completely or not at all
    rm -rf "$base"/versions/*.partial
    if [ ! -d "$base/versions/$version" ]; then
        mkdir -p "$base/versions"
        cp -R "$here" "$base/versions/$version.partial"
        "$python" "$base/versions/$version.partial/python/verify.py" $image || fail "the copy is not whole; is the disk full?"
        sync
        replace "$base/versions/$version.partial" "$base/versions/$version"
    fi
    here=$base/versions/$version # from here on, the unpacked folder is not needed
}

point() { # to the new version
    ln -sfn "versions/$version" "$base/current.new"
    replace "$base/current.new" "$base/current"
    sync
}

configure() {
    mkdir -p "$settings"
    if [ -n "$asked" ] && [ ! -f "$settings/environment" ]; then
        echo "RPCSYS_PYTHON='$asked'" >"$settings/environment.new"
        replace "$settings/environment.new" "$settings/environment"
    fi
    if [ -n "$flags" ]; then
        printf %s "$flags" >"$settings/$name.new"
        replace "$settings/$name.new" "$settings/$name.flags"
    fi
}

service() {
    mkdir -p "$root/usr/local/bin"
    ln -sfn ../../../opt/rpcsys/current/bin/rpcsys-server "$root/usr/local/bin/rpcsys-server"
    if [ -n "$systemd" ]; then
        mkdir -p "$units"
        cp "$here/systemd/rpcsys-server@.service" "$units/"
    else
        mkdir -p "$root/etc/init.d"
        cp "$here/init/rpcsys-server" "$init.new"
        chmod 755 "$init.new"
        replace "$init.new" "$init"
        # BusyBox's init starts scripts with names S…; other systems need update-rc.d.
        [ -e "$root/etc/init.d/S90rpcsys-server" ] || ln -s rpcsys-server "$root/etc/init.d/S90rpcsys-server"
        [ -n "$root" ] || ! command -v update-rc.d >/dev/null || update-rc.d rpcsys-server defaults
    fi
}

clean() { # versions that are no longer in use
    for each in "$base"/versions/*; do
        [ "$each" = "$base/versions/$version" ] || rm -rf "$each"
    done
}

[ -n "$root" ] || [ "$(id -u)" = 0 ] || fail "type: sudo $0 …"
command -v "$python" >/dev/null || fail "there is no $python here; install Python 3.8 or later, or name one: RPCSYS_PYTHON=…"
if [ $action = uninstall ]; then
    [ -z "$name" ] || [ -f "$settings/$name.flags" ] || fail "there is no server called $name here: there are $(names | tr '\n' ' ')" 2
    if [ -n "$name" ] && [ "$(names)" != "$name" ]; then uninstall_one; else uninstall; fi
    exit 0
fi
# -B: no bytecode files of root in the folder that the user has unpacked.
"$python" -B "$here/python/verify.py" $image || exit 1
version=$("$python" -B "$here/python/verify.py" name)
[ -n "$flags" ] || [ -n "$(names)" ] || fail "nothing is installed yet: give --key KEY and --tracker HOST:PORT" 2
if [ -n "$tested" ] && [ -n "$start" ]; then
    said=$(PYTHONDONTWRITEBYTECODE=1 sh "$here/bin/rpcsys-server" --self-test 2>&1) || fail "this board cannot serve:$newline$said"
fi
before=$(readlink "$base/current" || :)
record
copy
point
configure
service
[ "$before" = "versions/$version" ] || name= # all servers get the new version
if [ -n "$start" ]; then stop_servers drain "$drain" "$name"; fi
start_servers
clean
echo "rpcsys $version is installed: $(names | tr '\n' ' ')"
