# Sandlot's bash driver: it reads "ID SIZE" and SIZE bytes of code from fd 3, runs the
# code in this shell, and replies "ID STATUS" on fd 4. When the shell ends (exit, an
# interrupt, set -e), it saves its state, which the next shell restores.
__sandlot_save() {
  trap '' INT
  set +e
  { declare -p; declare -f; alias -p; printf 'cd -- %q\n' "$PWD"; } >"$__sandlot_state_file.new" 2>/dev/null && command mv -f -- "$__sandlot_state_file.new" "$__sandlot_state_file"
}
__sandlot_state_file=$SANDLOT_SAVE
unset SANDLOT_SAVE
if [ -n "${SANDLOT_RESTORE-}" ]; then
  __sandlot_restore_file=$SANDLOT_RESTORE
  unset SANDLOT_RESTORE
  source "$__sandlot_restore_file" >/dev/null 2>&1
  command rm -f -- "$__sandlot_restore_file"
  unset __sandlot_restore_file
fi
shopt -s expand_aliases
__sandlot_set_status() { return "$1"; }
__sandlot_code_file=$__sandlot_state_file.code __sandlot_status=0
trap __sandlot_save EXIT
trap 'exit 130' INT
echo "0 0" >&4
while IFS=' ' read -r -u 3 __sandlot_id __sandlot_size; do
  IFS= LC_ALL=C read -r -N "$__sandlot_size" -u 3 __sandlot_code
  printf '%s\n' "$__sandlot_code" >"$__sandlot_code_file"
  __sandlot_set_status "$__sandlot_status"
  source "$__sandlot_code_file" </dev/null 3<&- 4>&-
  __sandlot_status=$?
  # The code may have closed fd 4: then this shell ends, and the next restores its state.
  { echo "$__sandlot_id $__sandlot_status" >&4; } 2>/dev/null || exit "$__sandlot_status"
done
