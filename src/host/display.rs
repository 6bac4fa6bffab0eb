//! The screen inside, over the companion's API.

use super::answer::MAX_SCREENSHOT_BYTES;
use super::client::Client;
use crate::error::{Error, Result};
use crate::protocol::desktop::Link;
use crate::protocol::display::{
    PICTURE_HEADER, Resolution, SCREEN_HEADER, Screen, Screenshot, TAKEN_HEADER,
};
use reqwest::Method;
use reqwest::header::HeaderMap;

/// What a link to the desktop begins with, before its code.
const ENTER: &str = "/desktop/enter?code=";
/// A code has 48 characters.
const MAX_CODE_BYTES: usize = 128;

/// A picture, and what was told of it.
#[derive(Debug)]
pub(crate) struct Shot {
    pub(crate) file: Vec<u8>,
    /// `WIDTHxHEIGHT`, of the picture and of the whole screen.
    pub(crate) picture: String,
    pub(crate) screen: String,
    /// Milliseconds since 1970.
    pub(crate) taken: u64,
}

/// One link, with two names of the host.
#[derive(Debug)]
pub(crate) struct DesktopLink {
    pub(crate) url: String,
    /// For a browser that does not resolve `NAME.localhost`.
    pub(crate) by_address: String,
    /// Seconds in which it must be opened.
    pub(crate) expires: u64,
}

impl Client {
    /// What is on the screen now, as PNG.
    pub(crate) async fn screenshot(&self, query: &Screenshot) -> Result<Shot> {
        let request = self.request(Method::GET, "/display/screenshot", None::<&()>);
        let response = self.open(request.query(query)).await?;
        let headers = response.headers().clone();
        let file = self.body(response, MAX_SCREENSHOT_BYTES).await?;
        if !file.starts_with(b"\x89PNG") {
            let message = "the companion sent something that is no picture".into();
            return Err(Error::Refused {
                status: 502,
                kind: "no_picture".into(),
                message,
                hint: Some("`osctl logs` shows more".into()),
            }
            .into());
        }
        Ok(Shot {
            file: file.into(),
            picture: told(&headers, PICTURE_HEADER),
            screen: told(&headers, SCREEN_HEADER),
            taken: told(&headers, TAKEN_HEADER).parse().unwrap_or_default(),
        })
    }

    pub(crate) async fn resize(&self, width: u16, height: u16) -> Result<Screen> {
        let resolution = Resolution { width, height };
        self.call(Method::PUT, "/display/resolution", Some(&resolution))
            .await
    }

    /// A link that opens the desktop in a browser, once.
    pub(crate) async fn desktop_link(&self) -> Result<DesktopLink> {
        let Link { path, expires } = self
            .call(Method::POST, "/desktop/link", None::<&()>)
            .await?;
        let code = code_of(&path).ok_or_else(|| Error::Refused {
            status: 502,
            kind: "no_link".into(),
            message: format!("the companion sent `{path}`, which is not a link to its desktop"),
            hint: Some("`osctl logs` shows more".into()),
        })?;
        Ok(DesktopLink {
            url: format!("{}{ENTER}{code}", self.pages()),
            by_address: format!("{}{ENTER}{code}", self.published()),
            expires,
        })
    }
}

/// The code of a link that the companion issued. Anything else could lead the browser elsewhere: behind an address,
/// `@evil.example/` is another host.
fn code_of(path: &str) -> Option<&str> {
    let code = path.strip_prefix(ENTER)?;
    let is_hex = |c: u8| matches!(c, b'0'..=b'9' | b'a'..=b'f');
    (!code.is_empty() && code.len() <= MAX_CODE_BYTES && code.bytes().all(is_hex)).then_some(code)
}

fn told(headers: &HeaderMap, name: &str) -> String {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::code_of;

    #[test]
    fn a_link_is_a_path_of_the_desktop_with_a_code_in_hexadecimal() {
        assert_eq!(code_of("/desktop/enter?code=00ff"), Some("00ff"));
        for path in [
            "@evil.example/phish?x=1",
            "/desktop/enter?code=",
            "/desktop/enter?code=0@evil",
            "/desktop/enter?code=00&next=//evil",
            ".evil.example/desktop/enter?code=00",
            "/desktop/enter?code=FF",
        ] {
            assert_eq!(code_of(path), None, "{path}");
        }
    }
}
