#!/usr/bin/env bash
# Builds the image of conf/docker/Dockerfile without Docker, and runs the job of the project and a query in it.
# Buildah builds it, as root. Its base image is a Debian from the package registry, which trusts what this machine trusts.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
folder=$root/build/image
base=docker.io/library/debian:bookworm-slim
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs

images() { buildah --root "$folder/store" --runroot "$folder/run" "$@"; }

# Run a step; show the end of its log only if it fails.
step() {
  local name=$1
  shift
  echo "$name" >&2
  "$@" > "$folder/step.log" 2>&1 || { tail --lines 40 "$folder/step.log" >&2; exit 1; }
}

make_base() {
  local debian=$folder/debian container
  rm -rf "$debian"
  debootstrap --variant=minbase bookworm "$debian"
  mkdir --parents "$debian/etc/ssl/certs" "$debian/usr/local/share/ca-certificates"
  cp --dereference /etc/ssl/certs/ca-certificates.crt "$debian/etc/ssl/certs/"
  cp --recursive /usr/local/share/ca-certificates/. "$debian/usr/local/share/ca-certificates/"
  printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n' > "$debian/etc/pip.conf"
  container=$(images from scratch)
  images add --quiet "$container" "$debian" /
  images commit --quiet --rm "$container" "$base"
  rm -rf "$debian"
}

inside() {
  images run --env SPARK_LOCAL_HOSTNAME=localhost --volume "$root/scripts:/scripts:ro" "$container" -- tini -- "$@"
}

mkdir --parents "$folder"
images inspect --type image "$base" > /dev/null 2>&1 || step "making the base image" make_base
step "building the image" \
  images bud --pull-never --layers --file "$root/conf/docker/Dockerfile" \
  --ignorefile "$root/conf/docker/Dockerfile.dockerignore" --tag spark-throttle "$root"
container=$(images from --pull-never localhost/spark-throttle)
trap 'images rm "$container" > /dev/null' EXIT
step "running the job of the project" inside spark-submit jobs/throttle_stream.py --conf conf/throttle.yaml \
  --set source.options.limit=20000 --set trigger.processing_time=null --set trigger.available_now=true
inside python3 /scripts/first_query.py 2> "$folder/step.log" || { tail --lines 40 "$folder/step.log" >&2; exit 1; }
