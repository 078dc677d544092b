# Sandlot's bash driver: it reads the id and the size of a cell, 20 digits each, and the
# code from fd 3, runs it in this shell, and replies "ID STATUS" on fd 4. When the shell ends (exit, an
# interrupt, set -e), it saves its state, which the next shell restores. Options, traps
# and functions of the code must not change what the driver itself does: it calls
# builtins by name, writes over files (set -C), and hides its traces (set -x).
__sandlot_save() {
  builtin trap '' INT
  builtin set +ex
  { builtin shopt -p; builtin declare -p; builtin export -pf; builtin declare -f; builtin alias -p; builtin printf 'cd -- %q\n' "$PWD"; } >|"$__sandlot_state_file.new" 2>/dev/null && command mv -f -- "$__sandlot_state_file.new" "$__sandlot_state_file"
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
__sandlot_code_file=$__sandlot_state_file.code __sandlot_status=0 __sandlot_ended= __sandlot_trace=
# Scripts open the descriptors from 3 on by their numbers.
exec 253<&3 254>&4 3<&- 4>&-
trap '{ __sandlot_save; } 2>/dev/null' EXIT
trap 'builtin exit 130' INT
echo "0 0" >&254
while :; do
  # Break and continue of the code, too, lead to the reply.
  for __sandlot_once in 1; do
    {
      builtin read -r -N 40 -u 253 __sandlot_code || builtin exit 0
      __sandlot_id=${__sandlot_code:0:20} __sandlot_size=${__sandlot_code:20}
      LC_ALL=C builtin read -r -N "$__sandlot_size" -u 253 __sandlot_code
      builtin printf '%s%s' "$__sandlot_trace" "$__sandlot_code" >|"$__sandlot_code_file"
      # With && a status other than 0 does not end the shell (set -e).
      __sandlot_set_status "$__sandlot_status" && :
    } 2>/dev/null
    builtin source "$__sandlot_code_file" 253<&- 254>&-
  done
  {
    # A line behind the code keeps its status (proc.go): a source that fails would end the shell (set -e), or call a trap.
    __sandlot_status=${__sandlot_ended:-$?} __sandlot_ended= __sandlot_trace=
    # The next code turns the traces on again.
    case $- in *x*) __sandlot_trace='set -x; '; builtin set +x ;; esac
    # The code may have closed fd 254: then this shell ends, and the next restores its state.
    builtin echo "$__sandlot_id $__sandlot_status" >&254 || builtin exit "$__sandlot_status"
  } 2>/dev/null
done
