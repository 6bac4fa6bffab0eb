//! The error text for a denied access to a remote server, with the remedy. Pure function of the server's answer.
//!
//! The hub does not perform an OAuth sign-in: it has no browser of the user, and stores no secrets.

use reqwest::StatusCode;

/// The error message, if the answer is about authentication. `challenge` is the `WWW-Authenticate` header; `is_known`:
/// the request had a token.
pub(super) fn auth_error_message(
    status: StatusCode,
    challenge: &str,
    is_known: bool,
) -> Option<String> {
    let hint =
        "add a token of its provider to `headers` of the server: `Authorization: Bearer ${NAME}`";
    let is_oauth = ["resource_metadata", "authorization_uri", "scope="]
        .iter()
        .any(|marker| challenge.contains(marker));
    let why = match (status, is_known) {
        (StatusCode::UNAUTHORIZED, false) if is_oauth => format!(
            "it requires a sign-in by OAuth, which osctl does not support; if it also accepts a token, {hint}"
        ),
        (StatusCode::UNAUTHORIZED, false) => format!("it requires a token; {hint}"),
        (StatusCode::UNAUTHORIZED, true) => {
            format!("it does not accept the token in `headers`, which may have expired; {hint}")
        }
        (StatusCode::FORBIDDEN, true) => {
            "the token in `headers` does not have the rights for this request".to_owned()
        }
        _ => return None,
    };
    Some(format!("{why} ({status})"))
}

#[cfg(test)]
mod tests {
    use super::auth_error_message;
    use reqwest::StatusCode;

    #[test]
    fn a_denied_access_names_the_remedy() {
        let challenge =
            r#"Bearer resource_metadata="https://a.example/.well-known/oauth-protected-resource""#;
        let reason = |status, challenge, is_known| {
            auth_error_message(status, challenge, is_known).unwrap_or_default()
        };
        let oauth = reason(StatusCode::UNAUTHORIZED, challenge, false);
        assert!(
            oauth.contains("by OAuth") && oauth.contains("`headers`"),
            "{oauth}"
        );
        let token = reason(StatusCode::UNAUTHORIZED, "Bearer", false);
        assert!(token.starts_with("it requires a token"), "{token}");
        let expired = reason(StatusCode::UNAUTHORIZED, challenge, true);
        assert!(
            expired.contains("expired") && expired.contains("401"),
            "{expired}"
        );
        assert!(reason(StatusCode::FORBIDDEN, "", true).contains("does not have the rights"));
        for other in [
            StatusCode::OK,
            StatusCode::NOT_FOUND,
            StatusCode::BAD_GATEWAY,
        ] {
            assert_eq!(auth_error_message(other, challenge, true), None);
        }
        // The token is not the cause, for example, when the server does not accept the host name.
        assert_eq!(auth_error_message(StatusCode::FORBIDDEN, "", false), None);
    }
}
