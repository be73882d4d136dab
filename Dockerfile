# syntax=docker/dockerfile:1

FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
# The caches are not part of the image, so the program is copied out of target/ in the same step.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin redrive \
    && install -D -m 0755 target/release/redrive /out/redrive

# The same Debian release as above: the program needs the C library that it was linked against.
FROM debian:bookworm-slim
RUN groupadd --gid 65532 redrive \
    && useradd --uid 65532 --gid 65532 --home-dir /data --no-create-home --shell /usr/sbin/nologin redrive \
    && install -d -m 0700 -o 65532 -g 65532 /data
COPY --from=build /out/redrive /usr/local/bin/redrive
# After the directory has its owner: a new volume takes over what is there.
VOLUME /data
# By number, so that Kubernetes can check runAsNonRoot.
USER 65532:65532
EXPOSE 7433
# redrive drains on SIGTERM: pending claims return with DRAINING, leases stay, nothing is lost.
STOPSIGNAL SIGTERM
ENTRYPOINT ["redrive"]
# --insecure means: no keys configured, so every client that reaches the port may do everything. Publish it to trusted
# networks only (for example -p 127.0.0.1:7433:7433).
CMD ["serve", "--data", "/data", "--listen", "0.0.0.0:7433", "--insecure"]
