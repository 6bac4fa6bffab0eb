//! The screen of the container, over the companion's API.

use super::bounded_response::MAX_SCREENSHOT_BYTES;
use super::client::CompanionClient;
use crate::error::{Error, Result};
use crate::protocol::desktop::DesktopLinkReply;
use crate::protocol::display::{
    PICTURE_SIZE_HEADER, Resolution, SCREEN_SIZE_HEADER, SCREENSHOT_TIME_HEADER, ScreenSize,
    ScreenshotQuery,
};
use reqwest::Method;
use reqwest::header::HeaderMap;

/// The path of a link to the desktop, before its code.
const DESKTOP_LINK_PREFIX: &str = "/desktop/enter?code=";
/// A code has 48 characters.
const MAX_DESKTOP_CODE_BYTES: usize = 128;

/// A screenshot and its metadata.
#[derive(Debug)]
pub(crate) struct ScreenshotFile {
    pub(crate) file: Vec<u8>,
    /// The sizes of the picture and of the whole screen, as `WIDTHxHEIGHT`.
    pub(crate) picture_size: String,
    pub(crate) screen_size: String,
    /// Milliseconds since 1970.
    pub(crate) taken_at_ms: u64,
}

/// One link, with two host names.
#[derive(Debug)]
pub(crate) struct DesktopLink {
    pub(crate) url: String,
    /// For a browser that does not resolve `NAME.localhost`.
    pub(crate) address_url: String,
    /// Seconds until the link expires.
    pub(crate) expires: u64,
}

impl CompanionClient {
    /// The current screen, as PNG.
    pub(crate) async fn take_screenshot(&self, query: &ScreenshotQuery) -> Result<ScreenshotFile> {
        let request = self.build_request(Method::GET, "/display/screenshot", None::<&()>);
        let response = self.send_request(request.query(query)).await?;
        let headers = response.headers().clone();
        let file = self.read_bounded(response, MAX_SCREENSHOT_BYTES).await?;
        if !file.starts_with(b"\x89PNG") {
            let message = "the companion's response is not a PNG image".into();
            return Err(Error::Refused {
                status: 502,
                kind: "no_picture".into(),
                message,
                hint: Some("`osctl logs` shows more".into()),
            }
            .into());
        }
        Ok(ScreenshotFile {
            file: file.into(),
            picture_size: screen_header(&headers, PICTURE_SIZE_HEADER),
            screen_size: screen_header(&headers, SCREEN_SIZE_HEADER),
            taken_at_ms: screen_header(&headers, SCREENSHOT_TIME_HEADER)
                .parse()
                .unwrap_or_default(),
        })
    }

    pub(crate) async fn resize_screen(&self, width: u16, height: u16) -> Result<ScreenSize> {
        let resolution = Resolution { width, height };
        self.call(Method::PUT, "/display/resolution", Some(&resolution))
            .await
    }

    /// A link that opens the desktop in a browser, once.
    pub(crate) async fn desktop_link(&self) -> Result<DesktopLink> {
        let DesktopLinkReply { path, expires } = self
            .call(Method::POST, "/desktop/link", None::<&()>)
            .await?;
        let code = parse_link_code(&path).ok_or_else(|| Error::Refused {
            status: 502,
            kind: "no_link".into(),
            message: format!("the companion sent `{path}`, which is not a desktop link"),
            hint: Some("`osctl logs` shows more".into()),
        })?;
        Ok(DesktopLink {
            url: format!("{}{DESKTOP_LINK_PREFIX}{code}", self.pages_url()),
            address_url: format!("{}{DESKTOP_LINK_PREFIX}{code}", self.published_url()),
            expires,
        })
    }
}

/// The code of a link that the companion issued. Other texts could lead the browser to another host: appended to an
/// address, `@evil.example/` is another host.
fn parse_link_code(path: &str) -> Option<&str> {
    let code = path.strip_prefix(DESKTOP_LINK_PREFIX)?;
    let is_hex = |c: u8| matches!(c, b'0'..=b'9' | b'a'..=b'f');
    (!code.is_empty() && code.len() <= MAX_DESKTOP_CODE_BYTES && code.bytes().all(is_hex))
        .then_some(code)
}

fn screen_header(headers: &HeaderMap, name: &str) -> String {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::parse_link_code;

    #[test]
    fn a_link_is_a_path_of_the_desktop_with_a_code_in_hexadecimal() {
        assert_eq!(parse_link_code("/desktop/enter?code=00ff"), Some("00ff"));
        for path in [
            "@evil.example/phish?x=1",
            "/desktop/enter?code=",
            "/desktop/enter?code=0@evil",
            "/desktop/enter?code=00&next=//evil",
            ".evil.example/desktop/enter?code=00",
            "/desktop/enter?code=FF",
        ] {
            assert_eq!(parse_link_code(path), None, "{path}");
        }
    }
}
