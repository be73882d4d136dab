# Sourced by script/errors-by-language and script/outage-by-language: packages of each language, in target/by-language.
place=$PWD/target/by-language

# need COMMAND...
need() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null || { echo "$0: $tool is missing: install it first" >&2; exit 1; }
  done
}
need python3 node npm go

# install_python PACKAGE==VERSION...
install_python() {
  [ -x "$place/venv/bin/python" ] || python3 -m venv "$place/venv"
  "$place/venv/bin/pip" --quiet --disable-pip-version-check install "$@"
}

# install_node PACKAGE@VERSION...: beside copies of the programs, which find them there.
install_node() {
  mkdir -p "$place/node"
  [ -f "$place/node/package.json" ] || echo '{"private": true}' >"$place/node/package.json"
  npm --prefix "$place/node" install --silent --no-audit --no-fund "$@"
  cp script/by-language/node/*.mjs "$place/node/"
}

# install_go PACKAGE@VERSION...: a module with copies of the programs; the generated code goes beside them.
install_go() {
  mkdir -p "$place/go"
  cp -r script/by-language/go/. "$place/go/"
  (
    cd "$place/go"
    [ -f go.mod ] || go mod init redrive.dev/go 2>/dev/null
    go get "$@" 2>/dev/null || go get "$@"
  )
}
