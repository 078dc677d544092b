#!/bin/sh
# Sandlot's sudo: runs its arguments, as another user if one is named.
shell= user= group=
while [ $# -gt 0 ]; do
	case $1 in
	--) shift; break ;;
	-u | --user) user=$2; shift 2 ;;
	-g | --group) group=$2; shift 2 ;;
	--user=*) user=${1#*=}; shift ;;
	--group=*) group=${1#*=}; shift ;;
	-u*) user=${1#-u}; shift ;;
	-[!-]*u)
		case $1 in *i* | *s*) shell=${SHELL:-/bin/sh} ;; esac
		user=$2; shift 2 ;;
	-C | -D | -h | -p | -R | -T | -r | -t) shift 2 ;;
	-v | -k | -K | --validate | --reset-timestamp) [ $# -gt 1 ] || exit 0; shift ;;
	-l | --list) echo "User $(id -un) may run all commands of this sandbox"; exit 0 ;;
	-V | --version) echo "sudo of Sandlot"; exit 0 ;;
	-i | -s | --login | --shell) shell=${SHELL:-/bin/sh}; shift ;;
	-*) shift ;;
	*) break ;;
	esac
done
case $user in
root | 0 | "#0" | "$(id -un)" | "$(id -u)") user= ;;
esac
if [ -n "$shell" ]; then
	if [ $# -gt 0 ]; then set -- "$shell" -c "$*"; else set -- "$shell"; fi
elif [ $# -eq 0 ]; then
	echo "usage: sudo [-E] [-u USER] [NAME=VALUE...] COMMAND [ARGUMENT...]" >&2
	exit 1
fi
if [ -n "$user$group" ]; then
	exec /.sandlot/agent as "${user:-$(id -u)}${group:+:$group}" env "$@"
fi
exec env "$@"
