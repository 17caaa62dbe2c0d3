# One image for all roles and the model fetch: `specmesh run ROLE`, `specmesh up`, `specmesh model fetch`.
# Only instructions that the classic builder knows, too: no cache mounts, no here-documents.

# Debian 12 or like it. Python 3.11 is installed from apt where the base has no python3; no network is needed
# where it has (with python3-venv) and deploy/wheels holds the wheels. The digest is that of all architectures
# (docs/operate/operating.md#containers).
ARG BASE_IMAGE=debian:bookworm-20260824-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701689efe6fe859fe64d6990e4b07ea4171

FROM ${BASE_IMAGE} AS base
RUN python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
    || { apt-get update && apt-get install -y --no-install-recommends python3 ca-certificates \
         && rm -rf /var/lib/apt/lists/*; }

FROM base AS build
RUN python3 -c 'import ensurepip' 2>/dev/null \
    || { apt-get update && apt-get install -y --no-install-recommends python3-venv \
         && rm -rf /var/lib/apt/lists/*; }
# The index that torch comes from: that of its CPU builds keeps several GB of CUDA out. Empty: the usual one.
ARG TORCH_INDEX=
# 1: torch comes with CUDA although no GPU is there while the image is built.
ARG GPU=
# 1: with Ray, for the pods of deploy/kuberay.
ARG RAY=
# 1: torch may be a build whose hash isn't in deploy/locks.
ARG TORCH_UNVERIFIED=
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1
# Dependencies first, and pip refuses what has another hash than in deploy/locks: this layer lasts until a pin changes.
COPY deploy/wheels /wheels
COPY deploy/venv.py deploy/
COPY deploy/locks deploy/locks
COPY pyproject.toml setup.py ./
RUN python3 deploy/venv.py --venv /opt/specmesh --wheels /wheels --no-project ${RAY:+--ray}
COPY README.md LICENSE ./
COPY mesh mesh
COPY kernels kernels
COPY models models
COPY services services
COPY loadtest loadtest
COPY specmesh specmesh
# Compiled loops are found by the time of their source. Layers keep whole seconds of it, so that is what it is here.
RUN /opt/specmesh/bin/pip install --no-index --no-deps --no-build-isolation . \
    && find /opt/specmesh/lib/python3*/site-packages -path '*/specmesh/_rooms/*.py' \
         -exec sh -c 'for file; do touch -d "@$(stat -c %Y "$file")" "$file"; done' _ {} +

FROM base
# 1: for a worker on a GPU. Triton builds its launcher there, at the first kernel: with a C compiler and Python's headers.
ARG GPU=
RUN test -z "${GPU}" \
    || { command -v gcc && test -f "$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["include"])')/Python.h"; } \
    || { apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev python3-dev \
         && rm -rf /var/lib/apt/lists/*; }
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin specmesh \
    && install -d -o specmesh -g specmesh -m 0755 /models /var/cache/specmesh \
    && install -d -o specmesh -g specmesh -m 0700 /run/specmesh /var/lib/specmesh
COPY --from=build /opt/specmesh /opt/specmesh
# Bytecode was written at build time and the root file system is read-only: nothing tries to write it again.
# TRITON_CACHE_DIR: what Triton compiles is loaded from there, so the mount must not be noexec, as compose's /tmp is.
ENV PATH=/opt/specmesh/bin:$PATH \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 NUMBA_CACHE_DIR=/var/cache/specmesh \
    TRITON_CACHE_DIR=/var/cache/specmesh/triton \
    SPECMESH_CACHE_DIR=/models SPECMESH_RUN_DIR=/run/specmesh
USER specmesh
# The proposer's loops, for the processor of the machine that builds: a new volume begins with them. On another kind of
# processor they are compiled once more, at the first start.
RUN python3 -m specmesh.rooms services.proposer.fast.compiling
# As in pyproject.toml. Last, so that a new version builds none of the layers above again.
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="specmesh" \
      org.opencontainers.image.description="Serves language models over an OpenAI-compatible API, made faster by speculative decoding" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
WORKDIR /tmp
VOLUME ["/models"]
EXPOSE 8000 9100 9101 9102 9103
ENTRYPOINT ["specmesh"]
CMD ["up"]
