# One image for all roles and the model fetch: `specmesh run ROLE`, `specmesh up`, `specmesh model fetch`.
# Only instructions that the classic builder knows, too: no cache mounts, no here-documents.

# Debian 12 or like it. Python 3.11 is installed from apt where the base has no python3; no network is needed
# where it has (with python3-venv) and deploy/wheels holds the wheels.
ARG BASE_IMAGE=debian:bookworm-slim

FROM ${BASE_IMAGE} AS base
RUN python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
    || { apt-get update && apt-get install -y --no-install-recommends python3 ca-certificates \
         && rm -rf /var/lib/apt/lists/*; }

FROM base AS build
RUN python3 -c 'import ensurepip' 2>/dev/null \
    || { apt-get update && apt-get install -y --no-install-recommends python3-venv \
         && rm -rf /var/lib/apt/lists/*; }
# A further index for torch: that of its CPU builds keeps several GB of CUDA out. Empty: the usual one alone.
ARG TORCH_INDEX=
# Extras of pyproject.toml, with brackets: [gpu]
ARG EXTRAS=
WORKDIR /src
COPY deploy/wheels /wheels
COPY pyproject.toml constraints.txt ./
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=/src/constraints.txt
# Dependencies first, against an empty package: this layer lasts until pyproject.toml or a pin changes.
RUN python3 -m venv /opt/specmesh \
    && echo > README.md && echo > LICENSE \
    && if ls /wheels/*.whl >/dev/null 2>&1; then index="--no-index --find-links /wheels"; \
       else index="${TORCH_INDEX:+--extra-index-url ${TORCH_INDEX}}"; fi \
    && echo "${index}" > /tmp/index \
    && /opt/specmesh/bin/pip install ${index} ".${EXTRAS}" setuptools \
    && /opt/specmesh/bin/pip uninstall -y specmesh
COPY README.md LICENSE ./
COPY mesh mesh
COPY kernels kernels
COPY models models
COPY services services
COPY loadtest loadtest
# Compiled loops are found by the time of their source. Layers keep whole seconds of it, so that is what it is here.
RUN /opt/specmesh/bin/pip install --no-deps --no-build-isolation $(cat /tmp/index) . \
    && find /opt/specmesh/lib/python3*/site-packages -path '*/services/proposer/*.py' \
         -exec sh -c 'for file; do touch -d "@$(stat -c %Y "$file")" "$file"; done' _ {} +

FROM base
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin specmesh \
    && install -d -o specmesh -g specmesh -m 0755 /models /var/cache/specmesh \
    && install -d -o specmesh -g specmesh -m 0700 /run/specmesh /var/lib/specmesh
COPY --from=build /opt/specmesh /opt/specmesh
# Bytecode was written at build time and the root file system is read-only: nothing tries to write it again.
ENV PATH=/opt/specmesh/bin:$PATH \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 NUMBA_CACHE_DIR=/var/cache/specmesh \
    SPECMESH_CACHE_DIR=/models SPECMESH_RUN_DIR=/run/specmesh
USER specmesh
# The proposer's loops, for the processor of the machine that builds: a new volume begins with them. On another kind of
# processor they are compiled once more, at the first start.
RUN python3 -m services.proposer.suffix_index.warm
WORKDIR /tmp
VOLUME ["/models"]
EXPOSE 8000 9100 9101 9102 9103
ENTRYPOINT ["specmesh"]
CMD ["up"]
