# Each command's bash reads this script as it exits; its output is the context of the next command. The script uses
# only builtins, because a further process would take time and be visible to the user. The output has five parts, each
# ended by NUL: the DEBUG trap, which is written before this script; the folder; whether the folder of that name is
# still the one that bash is in; the options; the rest.
builtin printf '\0%s\0' "$PWD"
[[ . -ef $PWD ]] && builtin printf here
builtin printf '\0'
builtin set +o
builtin shopt -p
# After the options, because restoring `extdebug` changes them.
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
