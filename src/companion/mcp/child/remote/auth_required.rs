//! Why a remote server denies access, and what its user can do. Pure function of the server's answer.
//!
//! The hub does not perform an OAuth sign-in: it has no browser of the user, and stores no secrets.

use reqwest::StatusCode;

/// The error message, if the answer is about authentication. `challenge` is the `WWW-Authenticate` header; `is_known`
/// tells whether the request had a token.
pub(super) fn auth_problem(status: StatusCode, challenge: &str, is_known: bool) -> Option<String> {
    let cure =
        "put one from its provider into `headers` of the server: `Authorization: Bearer ${NAME}`";
    let is_oauth = ["resource_metadata", "authorization_uri", "scope="]
        .iter()
        .any(|mark| challenge.contains(mark));
    let why = match (status, is_known) {
        (StatusCode::UNAUTHORIZED, false) if is_oauth => format!(
            "it wants a sign-in by OAuth, which osctl does not do; if it takes a token instead, {cure}"
        ),
        (StatusCode::UNAUTHORIZED, false) => format!("it wants a token; {cure}"),
        (StatusCode::UNAUTHORIZED, true) => {
            format!("it does not accept the token in `headers`, which may have expired; {cure}")
        }
        (StatusCode::FORBIDDEN, true) => {
            "the token in `headers` is not allowed to do this".to_owned()
        }
        _ => return None,
    };
    Some(format!("{why} ({status})"))
}

#[cfg(test)]
mod tests {
    use super::auth_problem;
    use reqwest::StatusCode;

    #[test]
    fn who_is_not_let_in_is_told_what_to_do() {
        let challenge =
            r#"Bearer resource_metadata="https://a.example/.well-known/oauth-protected-resource""#;
        let told = |status, challenge, is_known| {
            auth_problem(status, challenge, is_known).unwrap_or_default()
        };
        let oauth = told(StatusCode::UNAUTHORIZED, challenge, false);
        assert!(
            oauth.contains("by OAuth") && oauth.contains("`headers`"),
            "{oauth}"
        );
        let token = told(StatusCode::UNAUTHORIZED, "Bearer", false);
        assert!(token.starts_with("it wants a token"), "{token}");
        let expired = told(StatusCode::UNAUTHORIZED, challenge, true);
        assert!(
            expired.contains("expired") && expired.contains("401"),
            "{expired}"
        );
        assert!(told(StatusCode::FORBIDDEN, "", true).contains("not allowed"));
        for other in [
            StatusCode::OK,
            StatusCode::NOT_FOUND,
            StatusCode::BAD_GATEWAY,
        ] {
            assert_eq!(auth_problem(other, challenge, true), None);
        }
        // The token is not the cause, for example, when the server does not accept the host name.
        assert_eq!(auth_problem(StatusCode::FORBIDDEN, "", false), None);
    }
}
