#!/bin/sh
# Installs Sandlot's programs of a release, or replaces them:
#
#   install.sh --from URL|FOLDER [--to FOLDER] [--signers FILE] [--downgrade]
#
# Nothing is unpacked or run before its checksum was compared. The programs that are there are replaced when the new
# ones have started, and put back if that fails. See docs/guide/install.md.
set -eu

from= to= signers= downgrade= temporary=

say() { printf 'install.sh: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

usage() {
	cat <<'END'
install.sh --from URL|FOLDER [--to FOLDER] [--signers FILE] [--downgrade]

--from       address of a release's files, or a folder with them
--to         folder for the programs (default: /usr/local/bin for root, else ~/.local/bin)
--signers    file of allowed signers, as ssh-keygen reads it: one of them must have signed the release
--downgrade  replace a newer Sandlot by an older one, which may not be able to read its state
END
}

while [ $# -gt 0 ]; do
	case $1 in
	--from | --to | --signers)
		[ $# -ge 2 ] || die "$1 needs a value"
		case $1 in --from) from=${2%/} ;; --to) to=$2 ;; --signers) signers=$2 ;; esac
		shift 2
		;;
	--downgrade) downgrade=yes; shift ;;
	-h | --help) usage; exit 0 ;;
	*) usage >&2; die "unknown argument $1" ;;
	esac
done
[ -n "$from" ] || { usage >&2; die "which release? Give its address or folder with --from"; }
if [ -z "$to" ]; then
	if [ "$(id -u)" = 0 ]; then to=/usr/local/bin; else to=${HOME:?}/.local/bin; fi
fi

# What is this machine?
case $(uname -s) in
Linux) system=linux ;;
Darwin) system=darwin ;;
MINGW* | MSYS* | CYGWIN* | Windows*)
	die "on Windows, run this in WSL 2, or unpack the release's archive for Windows by hand" ;;
*) die "there is no Sandlot for $(uname -s): there is one for Linux, macOS and Windows" ;;
esac
case $(uname -m) in
x86_64 | amd64) arch=amd64 ;;
aarch64 | arm64) arch=arm64 ;;
*) die "there is no Sandlot for processors of the kind $(uname -m): there is one for x86-64 and arm64" ;;
esac
# A shell that Rosetta translates says x86_64 on a Mac with an arm64 processor.
if [ "$system" = darwin ] && [ "$(sysctl -n sysctl.proc_translated 2> /dev/null || :)" = 1 ]; then arch=arm64; fi

case $from in
http://127.0.0.1[:/]* | http://localhost[:/]* | http://\[::1\]* | https://*) ;;
http://*) [ -n "$signers" ] || die "over http anybody on the way can replace the release; use https, or give --signers" ;;
esac

# fetch NAME: a file of the release, into the temporary folder
fetch() {
	case $from in
	http://* | https://*)
		case $from in https://*) secure='--proto-redir =https' ;; *) secure= ;; esac
		if command -v curl > /dev/null; then
			# shellcheck disable=SC2086 # two words
			curl -fsSL $secure --connect-timeout 30 --speed-limit 1 --speed-time 60 -o "$temporary/$1" "$from/$1"
		elif command -v wget > /dev/null; then
			wget -q -T 60 -O "$temporary/$1" "$from/$1"
		else
			die "neither curl nor wget is here to download with"
		fi
		;;
	*) cp -- "$from/$1" "$temporary/$1" ;;
	esac || die "$from/$1 cannot be read, or did not arrive whole; nothing was installed"
}

# sum FILE: its SHA-256
if command -v sha256sum > /dev/null; then
	sum() { sha256sum < "$1" | cut -d' ' -f1; }
elif command -v shasum > /dev/null; then
	sum() { shasum -a 256 < "$1" | cut -d' ' -f1; }
elif command -v openssl > /dev/null; then
	sum() { openssl dgst -sha256 -r < "$1" | cut -d' ' -f1; }
else
	die "no program that computes SHA-256 is here: sha256sum, shasum or openssl"
fi

# older VERSION VERSION: whether the first one is older, in the order of Semantic Versioning
older() {
	awk -v x="$1" -v y="$2" '
	function number(s) { return s ~ /^[0-9]+$/ }
	BEGIN {
		form = "^[0-9]+[.][0-9]+[.][0-9]+(-[0-9A-Za-z.-]+)?([+].*)?$"
		if (x !~ form || y !~ form) exit 1
		sub(/[+].*/, "", x); sub(/[+].*/, "", y)
		px = py = ""
		if (i = index(x, "-")) { px = substr(x, i + 1); x = substr(x, 1, i - 1) }
		if (i = index(y, "-")) { py = substr(y, i + 1); y = substr(y, 1, i - 1) }
		split(x, a, "."); split(y, b, ".")
		for (i = 1; i <= 3; i++) if (a[i] + 0 != b[i] + 0) exit !(a[i] + 0 < b[i] + 0)
		if (px == py) exit 1
		if (px == "" || py == "") exit !(py == "")
		n = split(px, a, "."); m = split(py, b, ".")
		for (i = 1; i <= n && i <= m; i++) {
			if (a[i] "" == b[i] "") continue
			if (number(a[i]) && number(b[i])) exit !(a[i] + 0 < b[i] + 0)
			if (number(a[i]) != number(b[i])) exit !number(a[i])
			exit !(a[i] "" < b[i] "")
		}
		exit !(n < m)
	}'
}

mkdir -p "$to" || die "$to cannot be made; give another folder with --to"
to=$(cd "$to" && pwd)
[ ! -e "$to/managed" ] || die "the programs in $to were installed by something else ($(cat "$to/managed")), which has to upgrade them"
# On the same file system as the programs, which then are replaced at once.
temporary=$(mktemp -d "$to/.sandlot-install.XXXXXX") || die "this user cannot write to $to; give another folder with --to"
replacing=
# finish CODE: puts the programs of before back when not all of the new ones are in place
finish() {
	trap - EXIT HUP INT TERM
	if [ -n "$replacing" ]; then
		rm -f "$to/sandlot-agent" "$to/sandlot-runsc"
		for old in "$temporary"/before/*; do
			[ ! -e "$old" ] || mv -f "$old" "$to/"
		done
		[ -e "$temporary/had" ] || rm -f "$to/sandlot"
		say "the programs in $to are the old ones"
	fi
	rm -rf "$temporary"
	exit "$1"
}
trap 'finish $?' EXIT
trap 'finish 129' HUP
trap 'finish 130' INT
trap 'finish 143' TERM

fetch checksums.txt
if [ -n "$signers" ]; then
	command -v ssh-keygen > /dev/null || die "ssh-keygen, which verifies the signature, is not here"
	fetch checksums.txt.sig
	ssh-keygen -Y verify -f "$signers" -I sandlot -n sandlot-release -s "$temporary/checksums.txt.sig" \
		< "$temporary/checksums.txt" > /dev/null || die "no signer in $signers vouches for the release; nothing was installed"
fi
archive=$(sed -n "s/^[0-9a-f]\{64\}  \(sandlot_[0-9A-Za-z.+~-]*_${system}_$arch\.tar\.gz\)\$/\1/p" "$temporary/checksums.txt")
case $archive in
'') die "the release has no archive for $system/$arch" ;;
*'
'*) die "the list of checksums names more than one archive for $system/$arch" ;;
esac
fetch "$archive"
want=$(sed -n "s/^\([0-9a-f]\{64\}\)  $archive\$/\1/p" "$temporary/checksums.txt")
got=$(sum "$temporary/$archive")
[ "$want" = "$got" ] || die "the checksum of $archive is $got, and should be $want: the file is damaged, did not arrive \
whole, or somebody has changed it; nothing was installed"

mkdir "$temporary/new" "$temporary/before"
tar -xzf "$temporary/$archive" -C "$temporary/new" || die "$archive cannot be unpacked; nothing was installed"
[ -f "$temporary/new/sandlot" ] || die "$archive has no program sandlot; nothing was installed"
version=$("$temporary/new/sandlot" version) || die "the new sandlot does not start here; nothing was installed"

# A signature has no date: an old release, whose faults are known, may be in the place of a new one.
if [ -z "$downgrade" ] && [ -x "$to/sandlot" ]; then
	command -v awk > /dev/null || die "awk, which compares versions, is not here; nothing was installed. To install without a look at the version that is there, give --downgrade"
	present=$("$to/sandlot" version 2> /dev/null) || present=
	if older "${version#sandlot }" "${present#sandlot }"; then
		die "the release is $version, which is older than $present in $to; nothing was installed. If you want the older one, give --downgrade"
	fi
fi

# The program that users start comes last: until then the others are no use to anybody.
for program in sandlot sandlot-agent sandlot-runsc; do
	if [ -e "$to/$program" ]; then
		cp -p "$to/$program" "$temporary/before/$program"
		[ "$program" != sandlot ] || : > "$temporary/had"
	fi
done
replacing=yes
for program in sandlot-agent sandlot-runsc sandlot; do
	if [ -f "$temporary/new/$program" ]; then
		chmod 755 "$temporary/new/$program"
		mv -f "$temporary/new/$program" "$to/$program"
	else
		rm -f "$to/$program"
	fi
done
"$to/sandlot" version > /dev/null || die "the new sandlot does not start in $to"
replacing=

echo "$version is installed: $to/sandlot"
case :$PATH: in
*":$to:"*) ;;
*) echo "$to is not on your PATH. To have it there: export PATH=\"$to:\$PATH\"" ;;
esac
echo "\"sandlot doctor\" checks that sandboxes work here; \"sandlot serve\" starts the server."
