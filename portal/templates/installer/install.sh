#!/bin/sh
# Installs the Vedette agent on this host, enrolls the host as an appliance and starts the agent.
# A second run updates the agent and repairs what is missing. The functions are in the order of the
# steps; --dry-run prints what they would change, and changes nothing.
set -eu
umask 022

portal={{ portal_url }}
version={{ version }}
pythons={{ pythons }}
machines={{ machines }}
# Of the list of packages, which has the SHA-256 of each.
requirements_sha256={{ requirements_sha256 }}
# The CA of the portal's certificate, unless hosts trust it already.
ca_sha256={{ ca_sha256 }}
ca_pem={{ ca_pem }}

prefix=/opt/vedette
data_dir=/var/lib/vedette
user=vedette
unit=vedette-agent.service
units=/etc/systemd/system
wait_seconds=60
token=${VEDETTE_ENROLLMENT_TOKEN:-}
config=${VEDETTE_AGENT_CONFIG:-}
name='' python='' is_again='' is_dry='' has_service=yes is_removal='' removes_data=''
takes_updates=yes privileges=''
changes=0 previous=''

usage() {
    cat <<END
Usage: curl -fsS $portal/install | sudo sh -s -- [OPTIONS] [TOKEN]

Installs and starts the Vedette agent $version. TOKEN comes from Appliances > Add in the portal.
Without it, VEDETTE_ENROLLMENT_TOKEN is used, or you are asked. An enrolled host needs none.
The text in VEDETTE_AGENT_CONFIG, if any, becomes the agent's settings (agent.toml).

  --name NAME        appliance name; default: the host name
  --again            replace the host's identity, with a token from the appliance's page
  --data-dir FOLDER  data of the agent; default: $data_dir
  --prefix FOLDER    software; default: $prefix
  --python PROGRAM   Python to use, one of $pythons; default: found, or installed
  --user USER        user of the agent, created if missing; default: $user
  --privileged       run the agent as root, for networks of gangs, MPS, MIG and NFS mounts
  --unprivileged     run it as its user again
  --no-updates       leave out the service with which the portal can update this agent
  --no-service       don't start the agent with systemd, such as in a container
  --uninstall        remove the agent; with --remove-data also its data and its user
  --dry-run          print the steps and change nothing
END
}

say() { printf '%s\n' "$*"; }

fail() { # cause, remedy
    printf '✗ %s\n  %s\n  Then run the same command again.\n' "$1" "$2" >&2
    exit 1
}

# Announce a change. With --dry-run, return false, so that it isn't made.
change() {
    changes=$((changes + 1))
    if [ -n "$is_dry" ]; then
        say "→ (dry run) $*"
        return 1
    fi
    say "→ $*"
}

quietly() { # remedy, command: show its output only if it fails
    remedy=$1
    shift
    "$@" >"$work/output" 2>&1 || {
        tail -n 20 "$work/output" >&2
        [ "$1" != as_user ] || shift
        fail "This failed: $*" "$remedy"
    }
}

as_user() {
    if [ "$(id -un)" = "$user" ]; then "$@"; else runuser -u "$user" -- "$@"; fi
}

# As the user that the service runs as.
as_agent() {
    if [ -e "$units/$unit.d/privileged.conf" ]; then "$@"; else as_user "$@"; fi
}

parse_options() {
    while [ $# -gt 0 ]; do
        case $1 in
            --name | --data-dir | --prefix | --python | --user)
                [ $# -gt 1 ] || fail "$1 needs a value." "See --help."
                ;;
        esac
        case $1 in
            --name) name=$2 && shift ;;
            --data-dir) data_dir=$2 && shift ;;
            --prefix) prefix=$2 && shift ;;
            --python) python=$2 && shift ;;
            --user) user=$2 && shift ;;
            --again) is_again=yes ;;
            --no-service) has_service='' ;;
            --privileged) privileges=yes ;;
            --unprivileged) privileges=no ;;
            --no-updates) takes_updates='' ;;
            --uninstall) is_removal=yes ;;
            --remove-data) removes_data=yes ;;
            --dry-run) is_dry=yes ;;
            -h | --help) usage && exit ;;
            -*) fail "There is no option $1." "See --help." ;;
            *) token=$1 ;;
        esac
        shift
    done
}

check_host() {
    [ -n "$is_dry" ] || [ "$(id -u)" = 0 ] ||
        fail "Only root can install the agent." "Use sudo: curl ... | sudo sh -s -- TOKEN"
    case " $machines " in
        *" $(uname -m) "*) ;;
        *) fail "The portal has packages for $machines, and this host is $(uname -m)." \
            "Ask an operator of the portal to build the wheelhouse for it." ;;
    esac
    [ -z "$has_service" ] || [ -d /run/systemd/system ] ||
        fail "systemd does not run on this host." \
            "Add --no-service, and start the agent by yourself. The last line will show how."
}

make_user() {
    if id "$user" >/dev/null 2>&1; then
        say "✓ User $user"
    elif change "Create the user $user"; then
        useradd --system --user-group --no-create-home --home-dir "$data_dir" \
            --shell /usr/sbin/nologin --comment "Vedette agent" "$user"
    fi
    # Docker runs the jobs. Its group is equivalent to root.
    if getent group docker >/dev/null && ! id -nG "$user" 2>/dev/null | grep -qw docker &&
        [ "$(id -un)" != "$user" ] && change "Add $user to the group docker, to run jobs"; then
        usermod --append --groups docker "$user"
    fi
    [ -d "$data_dir" ] || ! change "Create $data_dir" ||
        install -d -m 0700 -o "$user" -g "$(id -gn "$user")" "$data_dir"
}

is_usable_python() {
    "$1" -c 'import ensurepip, sys
sys.exit("%d.%d" % sys.version_info[:2] not in sys.argv[1].split())' "$pythons" 2>/dev/null &&
        { [ -n "$is_dry" ] || as_user "$1" -c '' 2>/dev/null; }
}

find_python() {
    # The last of them is what an earlier run was told to use.
    for candidate in ${python:-python3 python3.13 python3.12 python3.11 python3.14 \
        "$(readlink -f "$prefix/venv/bin/python" || true)"}; do
        if candidate=$(command -v "$candidate") && is_usable_python "$candidate"; then
            python=$candidate
            return
        fi
    done
    return 1
}

install_python() {
    remedy="Install one of Python $pythons with its venv module, and name it with --python."
    [ -z "$python" ] ||
        fail "$python is none of Python $pythons with venv that $user can run." "Choose another."
    if command -v apt-get >/dev/null; then
        # It also fails if a repository that isn't needed here is broken.
        ! change "Update the list of packages (apt-get update)" ||
            apt-get update >"$work/update" 2>&1 || true
        for wanted in $pythons; do
            if apt-cache policy "python$wanted-venv" | grep -q 'Candidate: [0-9]'; then
                change "Install python$wanted-venv with apt-get" || return 0
                quietly "$remedy" env DEBIAN_FRONTEND=noninteractive apt-get install \
                    --yes --no-install-recommends "python$wanted-venv"
                break
            fi
        done
    elif command -v dnf >/dev/null; then
        for wanted in $pythons; do
            if dnf --quiet info "python$wanted" >/dev/null 2>&1; then
                change "Install python$wanted with dnf" || return 0
                quietly "$remedy" dnf install --assumeyes "python$wanted"
                break
            fi
        done
    fi
    [ -z "$is_dry" ] && ! find_python || return 0
    grep '^[WE]: ' "$work/update" >&2 2>/dev/null || true
    fail "This host and its distribution have none of Python $pythons with venv." "$remedy"
}

download_requirements() {
    curl -fsS ${ca_pem:+--cacert "$work/ca.pem"} --output "$work/requirements.txt" \
        "$portal/install/requirements.txt" ||
        fail "The list of packages can't be downloaded." "Check that this host reaches $portal."
    printf '%s  %s\n' "$requirements_sha256" "$work/requirements.txt" | sha256sum --check --status ||
        fail "The list of packages is another than this script expects." \
            "The portal was updated meanwhile, or the connection is intercepted."
}

# Install into a new folder, and switch to it at the end: until then, the old version runs.
install_software() {
    release=$(printf '%.12s' "$requirements_sha256")
    if [ "$(cat "$prefix/installed" 2>/dev/null)" = "$release" ] &&
        "$prefix/venv/bin/vedette" --version >/dev/null 2>&1; then
        say "✓ Vedette $version in $prefix"
        return
    fi
    change "Install Vedette $version in $prefix, in about 15 seconds" || return 0
    download_requirements
    venv=$prefix/versions/$release
    case $portal in http://*) host=${portal#http://} ;; *) host='' ;; esac
    rm -rf "$venv"
    quietly "Check the disk and $python." "$python" -m venv "$venv"
    quietly "Check that this host reaches $portal, and the free space in $prefix." \
        "$venv/bin/python" -m pip --isolated --disable-pip-version-check install --no-cache-dir \
        --no-deps --require-hashes --only-binary :all: \
        --no-index --find-links "$portal/install/wheels/" \
        ${ca_pem:+--cert "$work/ca.pem"} ${host:+--trusted-host "${host%%/*}"} \
        --requirement "$work/requirements.txt"
    ! command -v restorecon >/dev/null || restorecon -R "$prefix"
    quietly "All users must be able to read $prefix and $python." \
        as_user "$venv/bin/vedette" agent unit
    previous=$(readlink "$prefix/venv" || true)
    switch_to "versions/$release"
    [ "$prefix" != /opt/vedette ] || [ -e /usr/local/bin/vedette ] ||
        ln -s "$prefix/venv/bin/vedette" /usr/local/bin/vedette
}

switch_to() {
    [ -L "$prefix/venv" ] || rm -rf "$prefix/venv"
    ln -sfn "$1" "$prefix/venv"
    printf '%s\n' "${1##*/}" >"$prefix/installed"
}

configure() {
    path=$data_dir/agent.toml
    [ -n "$config" ] || return 0
    printf '%s\n' "$config" >"$work/agent.toml"
    if cmp -s "$work/agent.toml" "$path"; then
        say "✓ $path"
    elif change "Write $path"; then
        # Another file than that of the agent, until the agent accepts it.
        install -m 0600 -o "$user" -g "$(id -gn "$user")" "$work/agent.toml" "$path.new"
        if ! as_user "$prefix/venv/bin/vedette" agent check --offline "$path.new" \
            >"$work/output" 2>&1; then
            cat "$work/output" >&2
            [ -z "$previous" ] || switch_to "$previous"
            fail "The agent does not accept these settings." "Correct VEDETTE_AGENT_CONFIG."
        fi
        [ ! -e "$path" ] || as_user cat "$path" >"$work/previous.toml"
        mv "$path.new" "$path"
    fi
}

ask_token() {
    [ -z "$token" ] || return 0
    { : </dev/tty; } 2>/dev/null ||
        fail "This host is not enrolled, and there is no token." \
            "Create one in the portal under Appliances > Add: $portal/appliances/new"
    printf 'Enrollment token, from %s/appliances/new: ' "$portal" >/dev/tty
    stty -echo </dev/tty
    read -r token </dev/tty || true
    stty echo </dev/tty
    printf '\n' >/dev/tty
}

# The token goes through a pipe, so that the process list doesn't show it.
enroll() {
    if [ -e "$data_dir/identity.json" ] && [ -z "$is_again" ]; then
        say "✓ Enrolled${token:+ before, so the token was not used. --again replaces the identity}"
    elif change "Enroll at $portal"; then
        ask_token
        printf '%s\n' "$token" | quietly "Create a new token: $portal/appliances/new" \
            as_user "$prefix/venv/bin/vedette" agent enroll "$portal" - --data-dir "$data_dir" \
            ${name:+--name "$name"} ${ca_sha256:+--ca-sha256 "$ca_sha256"} ${is_again:+--again}
    fi
}

print_unit() { # name
    "$prefix/venv/bin/vedette" agent unit --name "$1" --user "$user" --group "$(id -gn "$user")" \
        --program "$prefix/venv/bin/vedette" --data-dir "$data_dir" --portal-url "$portal" \
        ${takes_updates:+--updates "$prefix/updates"}
}

install_unit() { # name, file if it has another name
    file=$units/${2:-$1}
    # A dry run on a new host has no program that could print it.
    [ ! -x "$prefix/venv/bin/vedette" ] || print_unit "$1" >"$work/unit"
    if cmp -s "$work/unit" "$file"; then
        say "✓ $file"
    elif change "Write $file"; then
        cp "$work/unit" "$file"
        systemctl daemon-reload
    fi
}

# The update service runs as root: only root can write what it trusts, and its results.
allow_updates() {
    path_unit=vedette-agent-update.path
    if [ -z "$takes_updates" ]; then
        if [ -e "$units/$path_unit" ] && change "Remove the update service"; then
            systemctl --quiet disable --now "$path_unit"
            rm -f "$units/$path_unit" "$units/vedette-agent-update.service"
        fi
        return
    fi
    if [ -z "$is_dry" ]; then
        install -d -m 0755 "$prefix/updates"
        rm -f "$prefix/updates/ca.pem"
        [ -z "$ca_pem" ] || install -m 0644 "$work/ca.pem" "$prefix/updates/ca.pem"
    fi
    install_unit vedette-agent-update.service
    install_unit "$path_unit"
    if ! systemctl --quiet is-active "$path_unit" && change "Start the update service"; then
        systemctl --quiet enable --now "$path_unit"
    fi
}

# Without an option, the host keeps what it has.
set_privileges() {
    conf=$units/$unit.d/privileged.conf
    if [ "$privileges" = yes ]; then
        [ -n "$is_dry" ] || install -d -m 0755 "$units/$unit.d"
        install_unit vedette-agent-privileged.conf "$unit.d/privileged.conf"
    elif [ "$privileges" = no ] && [ -e "$conf" ] && change "Run the agent as $user again"; then
        ! systemctl --quiet is-active "$unit" || systemctl stop "$unit"
        rm -f "$conf"
        rmdir "$units/$unit.d" 2>/dev/null || true
        systemctl daemon-reload
        # Files that it has written as root.
        find -P "$data_dir" -xdev -user root -exec \
            chown --no-dereference "$user:$(id -gn "$user")" {} +
    fi
}

start_service() {
    set_privileges
    allow_updates
    install_unit "$unit"
    if [ "$changes" = 0 ] && systemctl --quiet is-active "$unit"; then
        say "✓ The agent runs"
    elif change "Start the agent with systemd"; then
        systemctl --quiet enable "$unit"
        quietly "See why: journalctl --unit $unit" systemctl restart "$unit"
    fi
}

wait_for_samples() {
    say "  Waiting for the portal to receive samples ..."
    if page=$(as_agent "$prefix/venv/bin/vedette" agent wait --data-dir "$data_dir" \
        --seconds "$wait_seconds" 2>"$work/output"); then
        find "$prefix/versions" -mindepth 1 -maxdepth 1 ! -name "$release" -exec rm -rf {} +
        say "✓ Online: $page"
        return
    fi
    as_agent "$prefix/venv/bin/vedette" agent check --data-dir "$data_dir" >&2 || true
    journalctl --unit "$unit" --lines 10 --no-pager --output cat >&2 || true
    if [ -n "$previous" ]; then
        switch_to "$previous"
        # The folder is the agent's: nothing there is followed or read as root.
        [ ! -e "$work/previous.toml" ] ||
            install -m 0600 -o "$user" -g "$(id -gn "$user")" \
                "$work/previous.toml" "$data_dir/agent.toml"
        systemctl restart "$unit"
        fail "Version $version sent no samples for $wait_seconds seconds, so the old one runs again." \
            "Its log says why: journalctl --unit $unit"
    fi
    fail "The portal has received no samples for $wait_seconds seconds." \
        "Its log says why: journalctl --unit $unit"
}

uninstall() {
    [ -x "$prefix/venv/bin/vedette" ] ||
        fail "There is no agent in $prefix." "If its data is elsewhere, remove it by hand."
    "$prefix/venv/bin/vedette" agent uninstall --user "$user" --data-dir "$data_dir" \
        ${removes_data:+--remove-data} ${is_dry:+--dry-run}
    say "Revoke the appliance in the portal, if it does not come back."
}

main() {
    parse_options "$@"
    cd /
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    [ -z "$ca_pem" ] || printf '%s\n' "$ca_pem" >"$work/ca.pem"
    if [ -n "$is_removal" ]; then
        uninstall
        return
    fi
    check_host
    make_user
    if find_python; then say "✓ Python: $python"; else install_python; fi
    install_software
    configure
    enroll
    [ -z "$has_service" ] || start_service
    if [ -n "$is_dry" ]; then
        say "Nothing was changed."
    elif [ -n "$has_service" ]; then
        wait_for_samples
    else
        say "✓ Run the agent as $user: $prefix/venv/bin/vedette agent run --data-dir $data_dir"
    fi
}

# All of the script has arrived when this line has.
main "$@"
