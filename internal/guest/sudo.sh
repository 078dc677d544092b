#!/bin/sh
# Sandlot's sudo: runs its arguments as the user of the sandbox, since there is no other.
shell=
while [ $# -gt 0 ]; do
	case $1 in
	--) shift; break ;;
	-u | -g | --user | --group)
		case $2 in
		root | 0 | "#0" | "$(id -un)" | "$(id -u)") ;;
		*) echo "sudo: all programs of this sandbox run as $(id -un); leave $1 $2 out" >&2; exit 1 ;;
		esac
		shift 2 ;;
	--user=root | --group=root) shift ;;
	--user=* | --group=*) echo "sudo: all programs of this sandbox run as $(id -un); leave $1 out" >&2; exit 1 ;;
	-C | -D | -h | -p | -R | -T | -r | -t) shift 2 ;;
	-v | -k | -K | --validate | --reset-timestamp) [ $# -gt 1 ] || exit 0; shift ;;
	-l | --list) echo "User $(id -un) may run all commands of this sandbox"; exit 0 ;;
	-V | --version) echo "sudo of Sandlot"; exit 0 ;;
	-i | -s | --login | --shell) shell=${SHELL:-/bin/sh}; shift ;;
	-*) shift ;;
	*) break ;;
	esac
done
if [ -n "$shell" ]; then
	[ $# -gt 0 ] || exec "$shell"
	exec "$shell" -c "$*"
fi
if [ $# -eq 0 ]; then
	echo "usage: sudo [-E] [NAME=VALUE...] COMMAND [ARGUMENT...]" >&2
	exit 1
fi
exec env "$@"
