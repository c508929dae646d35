# shellcheck shell=bash disable=SC2154
# What smoke tests of an agent share. Needs agent.sh; the script that reads this has said: `api` and `token` of the agent,
# `vm`, the one that it makes.

# ask <method> <path> [body]: the body of the answer; an error status ends the test.
ask() {
  local method=$1 path=$2 body=()
  [ $# -lt 3 ] || body=(--header 'Content-Type: application/json' --data-binary "$3")
  with_token "$token" --fail-with-body --max-time 180 --request "$method" "${body[@]}" "$api$path" ||
    die "$method $path failed"
}
# has <answer> <pattern> <what>
has() { grep -Eq -- "$2" <<<"$1" || die "$3: unexpected answer: $1"; log "ok: $3"; }
# guest <word>...: standard output of a command in the VM.
guest() {
  local words
  words=$(printf ',"%s"' "$@")
  ask POST "/v1/vm/$vm/exec" "{\"cmd\":[${words#,}]}" | field stdout | base64 -d
}
write() { ask POST "/v1/vm/$vm/upload" "{\"path\":\"/root/hello.txt\",\"content_b64\":\"$(printf %s "$1" | base64)\"}"; }
