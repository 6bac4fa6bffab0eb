use super::{ShellContext, ShellFolder, is_bash_variable, is_declaration, quote_word};
use crate::protocol::environment::UserEnvironment;
use std::path::Path;
use std::sync::Arc;

#[test]
fn only_a_whole_context_replaces_the_old_one() {
    let context = ShellContext::new("/".into()).unwrap();
    assert!(context.next_context(b"").is_none());
    assert!(
        context
            .next_context(b"\0/tmp\0here\0set +o xtrace\n\0declare")
            .is_none()
    );
    let written = b"\0/tmp\0here\0set +o xtrace\nshopt -u compat31\n\0declare -- A=\"1\"\ndeclare -ir UID=\"0\"\n\0";
    let next = context.next_context(written).unwrap();
    assert_eq!(next.cwd, Path::new("/tmp"));
    let script = String::from_utf8(next.start_script("L", "O")).unwrap();
    assert!(
        script.contains("A=\"1\"") && script.contains("xtrace"),
        "{script}"
    );
    assert!(!script.contains("UID") && !script.contains("compat31"));
    // The same output again is not a change.
    assert!(next.next_context(written).is_none());
}

#[test]
fn output_of_a_trap_after_the_context_is_ignored() {
    let context = ShellContext::new("/".into()).unwrap();
    let whole = b"\0/tmp\0here\0set +o xtrace\n\0declare -- A=\"1\"\n\0";
    let next = context.next_context(whole).unwrap();
    let traced = context.next_context(&[whole.as_slice(), b"bye\n"].concat());
    assert_eq!(
        traced.unwrap().start_script("L", "O"),
        next.start_script("L", "O")
    );
}

#[test]
fn a_recreated_folder_is_entered_only_when_bash_is_in_it() {
    let around = tempfile::tempdir().unwrap();
    let folder = around.path().join("w");
    std::fs::create_dir(&folder).unwrap();
    let context = ShellContext::new(folder.clone()).unwrap();
    std::fs::rename(&folder, around.path().join("moved")).unwrap();
    std::fs::create_dir(&folder).unwrap();
    let left = |is_there: &str| {
        let path = folder.display();
        format!("\0{path}\0{is_there}\0set +o xtrace\n\0\0").into_bytes()
    };
    let entered = context.next_context(&left("here")).unwrap();
    let fresh = super::open_folder(&folder).unwrap();
    assert!(super::is_same_folder(&entered.folder, &fresh));
    let unchanged = context.next_context(&left("")).unwrap();
    assert!(super::is_same_folder(&unchanged.folder, &context.folder));
    // Entering the folder is a change; the same output again is not.
    let again = unchanged.next_context(&left("here")).unwrap();
    assert!(super::is_same_folder(&again.folder, &fresh));
    assert!(
        again.next_context(&left("here")).is_none() && unchanged.next_context(&left("")).is_none()
    );
}

#[test]
fn a_context_survives_being_packed() {
    let mut context = ShellContext::new("/".into()).unwrap();
    let written = b"\0/tmp\0here\0set +o xtrace\n\0declare -- A=\"\xff\"\n\0";
    context = context.next_context(written).unwrap();
    context.set_variable("B", Some("it's"));
    let text = serde_json::to_string(&context.pack()).unwrap();
    let again = ShellContext::unpack(serde_json::from_str(&text).unwrap()).unwrap();
    assert_eq!(again.cwd, Path::new("/tmp"));
    assert_eq!(again.start_script("L", "O"), context.start_script("L", "O"));
    let fresh = ShellContext::unpack(ShellContext::new("/".into()).unwrap().pack()).unwrap();
    assert!(fresh.is_fresh());
}

#[test]
fn an_invalid_folder_changes_nothing() {
    let mut context = ShellContext::new("/".into()).unwrap();
    let find =
        |path: &str| ShellFolder::resolve(Path::new(path), Path::new("/"), Path::new("/tmp"));
    assert!(find("no/such").is_err() && find("").is_err() && find("dev/null").is_err());
    assert_eq!(context.cwd, Path::new("/"));
    context.change_folder(find("~").unwrap());
    assert_eq!(context.cwd, Path::new("/tmp"));
}

#[test]
fn words_are_quoted() {
    assert_eq!(quote_word(b"it's $HOME"), b"'it'\\''s $HOME'");
}

#[test]
fn variables_of_bash_are_distinguished_from_functions() {
    assert!(is_bash_variable(b"declare -ir PPID=\"1\"\n"));
    assert!(is_declaration(b"declare -ax A\n") && !is_declaration(b"declare -f f\n"));
    assert!(
        !is_bash_variable(b"declare -x PATH=\"/bin\"\n") && !is_bash_variable(b"declare -fx UID\n")
    );
}

#[test]
fn changes_of_the_users_variables_come_before_changes_from_outside() {
    let user = |value: &str| Arc::new(UserEnvironment([("KEY".into(), value.into())].into()));
    let script =
        |context: &ShellContext| String::from_utf8(context.start_script("L", "O")).unwrap();
    let fresh = ShellContext::new("/".into())
        .unwrap()
        .with_environment(user("old"));
    // The environment of the first process has them.
    assert!(!script(&fresh).contains("KEY"));
    let left: &[u8] = b"\0/tmp\0here\0set +o xtrace\n\0declare -x KEY=\"old\"\n\0";
    let context = fresh.next_context(left).unwrap();
    assert!(!script(&context).contains("declare -gx KEY"));
    let mut changed = context.clone().with_environment(user("new"));
    changed.set_variable("KEY", Some("outside"));
    let both = "declare -gx KEY='new'\ndeclare -gx KEY='outside'\n";
    assert!(script(&changed).contains(both), "{}", script(&changed));
    let removed = context.with_environment(Arc::default());
    assert!(script(&removed).contains("unset -v KEY\n"));
}
