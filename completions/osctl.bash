
_clap_complete_osctl() {
    local IFS=$'\013'
    local space=true
    if compopt +o nospace 2> /dev/null; then
        space=false
    fi
    local words=("${COMP_WORDS[@]}")
    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
        words[COMP_CWORD]="$2"
    fi
    local found
    if ! found=$( \
        _CLAP_IFS="$IFS" \
        _CLAP_COMPLETE_INDEX="$COMP_CWORD" \
        _CLAP_COMPLETE_COMP_TYPE="$COMP_TYPE" \
        _CLAP_COMPLETE_SPACE="$space" \
        COMPLETE="bash" \
        "osctl" -- "${words[@]}" \
    ); then
        unset COMPREPLY
        return
    fi
    # `COMPREPLY=( $found )` would expand patterns.
    IFS=$'\013' read -r -d '' -a COMPREPLY < <(printf '%s' "$found")
    if [[ $space == false ]] && [[ "${COMPREPLY-}" =~ [=/:]$ ]]; then
        compopt -o nospace
    fi
}
if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -o nospace -o bashdefault -o nosort -F _clap_complete_osctl osctl
else
    complete -o nospace -o bashdefault -F _clap_complete_osctl osctl
fi
COMP_WORDBREAKS=${COMP_WORDBREAKS//:}
