# docker build -t scm-fast . && docker run --rm scm-fast
# Trains and compares two methods on the built-in set, on the CPU; `docker run --rm -it scm-fast bash` for the rest.
FROM python:3.11-slim-bookworm

RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends g++ make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /scm-fast
COPY pyproject.toml constraints.txt Makefile README.md LICENSE ./
COPY configs configs
COPY kernels kernels
COPY scm_fast scm_fast
RUN make install
ENV PATH="/scm-fast/.venv/bin:$PATH"
CMD ["make", "demo"]
