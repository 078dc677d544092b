# Sandlot's bash driver: reads "id bytes" and that many bytes of code from fd 3,
# runs them in this shell, and answers "id status" on fd 4. When the shell
# ends (exit, an interrupt, set -e) it saves its state for the next one.
__sandlot_save() {
  trap '' INT
  set +e
  { declare -p; declare -f; alias -p; printf 'cd -- %q\n' "$PWD"; } >"$__sandlot_file.new" 2>/dev/null && command mv -f -- "$__sandlot_file.new" "$__sandlot_file"
}
__sandlot_file=$SANDLOT_SAVE
unset SANDLOT_SAVE
if [ -n "${SANDLOT_RESTORE-}" ]; then
  __sandlot_from=$SANDLOT_RESTORE
  unset SANDLOT_RESTORE
  source "$__sandlot_from" >/dev/null 2>&1
  command rm -f -- "$__sandlot_from"
  unset __sandlot_from
fi
shopt -s expand_aliases
__sandlot_last() { return "$1"; }
__sandlot_source=$__sandlot_file.code __sandlot_status=0
trap __sandlot_save EXIT
trap 'exit 130' INT
echo "0 0" >&4
while IFS=' ' read -r -u 3 __sandlot_id __sandlot_n; do
  IFS= LC_ALL=C read -r -N "$__sandlot_n" -u 3 __sandlot_code
  printf '%s\n' "$__sandlot_code" >"$__sandlot_source"
  __sandlot_last "$__sandlot_status"
  source "$__sandlot_source" </dev/null 3<&- 4>&-
  __sandlot_status=$?
  # The code may have closed it: the next shell has this one's state then.
  { echo "$__sandlot_id $__sandlot_status" >&4; } 2>/dev/null || exit "$__sandlot_status"
done
