# Sandlot's bash driver: the loop of the shell's command line (proc.go) reads this text from fd 3, and then the id and
# the size of a cell, 20 digits each, and the code. It runs that in this shell, and replies "ID STATUS" on fd 4. When
# the shell ends (exit, an interrupt, set -e), it saves its state, which the next shell restores. Options, traps
# and functions of the code must not change what the driver itself does: it calls
# builtins by name, writes over files (set -C), and hides its traces (set -x).
unset -v sandlot_cells # this text
__sandlot_save() {
  builtin trap '' INT
  builtin set +ex
  { builtin shopt -p; builtin declare -p; builtin export -pf; builtin declare -f; builtin printf '\\builtin cd -- %q\n' "$PWD"; builtin alias -p; } >|"$__sandlot_state_file.new" 2>/dev/null && { command -p mv -f -- "$__sandlot_state_file.new" "$__sandlot_state_file" || command mv -f -- "$__sandlot_state_file.new" "$__sandlot_state_file"; }
}
# Scripts open the descriptors from 3 on by their numbers. 251 and 252 are the output.
exec 253<&3 254>&4 3<&- 4>&- 251>&1 252>&2
__sandlot_state_file=$SANDLOT_SAVE
unset SANDLOT_SAVE
if [ -n "${SANDLOT_RESTORE-}" ]; then
  __sandlot_restore_file=$SANDLOT_RESTORE
  unset SANDLOT_RESTORE
  source "$__sandlot_restore_file" >/dev/null 2>&1
  command -p rm -f -- "$__sandlot_restore_file" || command rm -f -- "$__sandlot_restore_file"
  unset __sandlot_restore_file
fi
# Aliases and functions of the code, which may have been restored, are not for what follows.
\builtin shopt -u expand_aliases
__sandlot_set_status() { builtin return "$1"; }
__sandlot_code_file=$__sandlot_state_file.code __sandlot_status=0 __sandlot_ended= __sandlot_trace=
# What the code has led to a file stays there, as in any shell, and is said: later cells would be mute without a word.
__sandlot_follow_output() {
  [[ ! /proc/$$/fd/1 -ef /proc/$$/fd/251 && -e /proc/$$/fd/251 && ! -p /proc/$$/fd/1 ]] || builtin return 0
  builtin local to='nothing that is open'
  [[ ! -L /proc/$$/fd/1 ]] || to=$(command -p readlink "/proc/$$/fd/1") || to='another file'
  builtin printf '[the output of this shell leads to %s, and not to results; exit leads it there again, and keeps the variables]\n' "$to" >&252
}
builtin trap '{ __sandlot_save; } 2>/dev/null' EXIT
builtin trap 'builtin exit 130' INT
builtin echo "0 0" >&254
builtin shopt -s expand_aliases
