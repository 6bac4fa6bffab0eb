# Read by each command's bash as it exits: what the next one begins with. Builtins alone, because a
# process more would be seen and felt. Five parts, each ended by NUL: the trap of DEBUG, which stands
# there already, folder, whether bash is in what has that name by now, options, the rest.
builtin printf '\0%s\0' "$PWD"
[[ . -ef $PWD ]] && builtin printf here
builtin printf '\0'
builtin set +o
builtin shopt -p
# That of extdebug would take them back.
[[ -o functrace ]] && builtin printf 'set -T\n' || builtin printf 'set +T\n'
[[ -o errtrace ]] && builtin printf 'set -E\n' || builtin printf 'set +E\n'
builtin set +eux
builtin umask -p
for __osctl in c d e f l m n q r s t u v x; do
    builtin printf 'ulimit -S%s ' $__osctl
    builtin ulimit -S$__osctl
done
builtin printf '\0set --'
(($#)) && builtin printf ' %q' "$@"
builtin printf '\n'
for ((__osctl = ${#DIRSTACK[@]} - 1; __osctl > 0; __osctl--)); do
    builtin printf 'pushd -n -- %q\n' "${DIRSTACK[__osctl]}"
done
builtin unset __osctl
builtin trap - EXIT
builtin trap -p
builtin alias -p
builtin declare -f
builtin declare -F
builtin declare -p
builtin printf '\0'
