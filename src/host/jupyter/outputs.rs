//! The policy for outputs that reach the front end: types that display, without active content.
//!
//! ```text
//! text/plain, image/png, image/jpeg, application/json ──▶ unchanged
//! text/html, image/svg+xml, text/markdown, text/latex ──▶ sanitized
//! application/javascript, application/vnd.*, others   ──▶ dropped
//! ```
//!
//! A person who trusts the code of the session with their Jupyter installs the kernelspec with `--trust-html`; then all
//! outputs pass.

use crate::host::sanitize::{
    disable_active_tex, has_visible_content, markdown_as_html, plain_markdown, sanitize_html,
    sanitize_svg,
};
use crate::protocol::kernel::MimeBundle;
use serde_json::{Map, Value, json};

/// Limit of a text that is sanitized; a longer text is not shown.
const MAX_SANITIZED_BYTES: usize = 4 << 20;
/// Limit of an output that passes unchanged.
const MAX_JUPYTER_OUTPUT_BYTES: usize = 64 << 20;

const JUPYTER_PLAIN_TYPE: &str = "text/plain";
const JUPYTER_HTML_TYPE: &str = "text/html";
const JUPYTER_MARKDOWN_TYPE: &str = "text/markdown";
const JUPYTER_SVG_TYPE: &str = "image/svg+xml";
const JUPYTER_IMAGE_TYPES: [&str; 2] = ["image/png", "image/jpeg"];

/// The outputs that reach a front end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum OutputPolicy {
    #[default]
    Sanitized,
    /// All types, unchanged.
    Trusted,
}

impl OutputPolicy {
    /// `data` and `metadata` of an output for the front end.
    pub(super) fn filter_bundle(self, data: &MimeBundle, metadata: &MimeBundle) -> (Value, Value) {
        match self {
            Self::Trusted => (json!(data), json!(metadata)),
            Self::Sanitized => {
                let safe = sanitize_bundle(data);
                let metadata = filter_metadata(metadata, &safe);
                (safe.into(), metadata.into())
            }
        }
    }
}

fn sanitize_bundle(data: &MimeBundle) -> Map<String, Value> {
    let mut safe = Map::new();
    let mut dropped = Vec::new();
    for (kind, value) in data {
        match sanitize_representation(kind, value, data) {
            Some((kind, value)) => drop(safe.insert(kind.into(), value)),
            None => dropped.push(kind.as_str()),
        }
    }
    // The plain text beside an HTML output only names the object.
    let was_page =
        dropped.contains(&JUPYTER_HTML_TYPE) && safe.keys().all(|kind| kind == JUPYTER_PLAIN_TYPE);
    if !dropped.is_empty() && (safe.is_empty() || was_page) {
        let kinds = dropped.join("`, `");
        let note = format!(
            "(`{kinds}` is not shown; `osctl jupyter install --trust-html` allows the container's code to run scripts here)"
        );
        let text = safe.get(JUPYTER_PLAIN_TYPE).and_then(Value::as_str);
        let text = text.map(|text| format!("{text}\n")).unwrap_or_default();
        safe.insert(JUPYTER_PLAIN_TYPE.into(), (text + &note).into());
    }
    safe
}

/// One representation, and the type under which it passes.
fn sanitize_representation<'a>(
    kind: &'a str,
    value: &Value,
    data: &MimeBundle,
) -> Option<(&'a str, Value)> {
    let text = value.as_str();
    let short = text.filter(|text| text.len() <= MAX_SANITIZED_BYTES);
    match kind {
        "application/json" => Some((kind, value.clone())),
        JUPYTER_PLAIN_TYPE => text
            .filter(|text| text.len() <= MAX_JUPYTER_OUTPUT_BYTES)
            .map(|text| (kind, text.into())),
        _ if JUPYTER_IMAGE_TYPES.contains(&kind) => text
            .filter(|text| text.len() <= MAX_JUPYTER_OUTPUT_BYTES && is_base64(text))
            .map(|text| (kind, text.into())),
        // A page of scripts is empty after sanitizing.
        JUPYTER_HTML_TYPE => {
            let clean = sanitize_html(short?);
            let is_left = has_visible_content(&clean) || short?.trim().is_empty();
            is_left.then(|| (JUPYTER_HTML_TYPE, clean.into()))
        }
        // The output has the same picture in a type without active content.
        JUPYTER_SVG_TYPE
            if JUPYTER_IMAGE_TYPES
                .iter()
                .any(|picture| data.contains_key(*picture)) =>
        {
            None
        }
        JUPYTER_SVG_TYPE => sanitize_svg(short?).map(|svg| (JUPYTER_SVG_TYPE, svg.into())),
        "text/latex" => short.map(|tex| (kind, disable_active_tex(tex).into())),
        JUPYTER_MARKDOWN_TYPE => match plain_markdown(short?) {
            Some(plain) => Some((JUPYTER_MARKDOWN_TYPE, plain.into())),
            None if data.contains_key(JUPYTER_HTML_TYPE) => None,
            None => Some((JUPYTER_HTML_TYPE, markdown_as_html(short?).into())),
        },
        _ => None,
    }
}

fn is_base64(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=\r\n".contains(&byte);
    text.bytes().all(fits)
}

/// The metadata of the passed types that front ends use for the layout of pictures and trees.
fn filter_metadata(metadata: &MimeBundle, data: &Map<String, Value>) -> Map<String, Value> {
    let is_known = |key: &str, value: &Value| match key {
        "width" | "height" => value.is_number(),
        "unconfined" | "expanded" | "isolated" => value.is_boolean(),
        "needs_background" => value == "light" || value == "dark",
        _ => false,
    };
    let metadata_kept = metadata.iter().filter(|(kind, _)| data.contains_key(*kind));
    let metadata_kept = metadata_kept.filter_map(|(kind, value)| {
        let known = value.as_object()?.iter();
        let known = known.filter(|(key, value)| is_known(key, value));
        let known: Map<String, Value> = known.map(|(k, v)| (k.clone(), v.clone())).collect();
        (!known.is_empty()).then(|| (kind.clone(), known.into()))
    });
    metadata_kept.collect()
}

#[cfg(test)]
mod tests {
    use super::OutputPolicy;
    use crate::protocol::kernel::MimeBundle;
    use serde_json::{Value, json};

    fn bundle(value: Value) -> MimeBundle {
        value.as_object().unwrap().clone()
    }

    fn sanitized(data: Value) -> Value {
        OutputPolicy::Sanitized
            .filter_bundle(&bundle(data), &MimeBundle::new())
            .0
    }

    #[test]
    fn scripts_and_vendor_types_are_dropped_unless_the_person_trusts_them() {
        let data = json!({
            "application/javascript": "alert(1)",
            "text/javascript": "alert(1)",
            "application/vnd.jupyter.widget-view+json": {"model_id": "x"},
            "application/vnd.plotly.v1+json": {"data": []},
            "application/pdf": "JVBERi0=",
            "image/gif": "R0lG",
            "text/plain": "1",
        });
        assert_eq!(sanitized(data.clone()), json!({"text/plain": "1"}));
        let (trusted, _) =
            OutputPolicy::Trusted.filter_bundle(&bundle(data.clone()), &MimeBundle::new());
        assert_eq!(trusted, data);
    }

    #[test]
    fn an_output_without_allowed_content_becomes_a_notice() {
        let left = sanitized(json!({"application/javascript": "alert(1)"}));
        let text = left["text/plain"].as_str().unwrap();
        assert!(
            text.contains("`application/javascript` is not shown") && text.contains("--trust-html")
        );
        assert_eq!(sanitized(json!({})), json!({}));
        // The output of plotly, and IPython's text for a page.
        let page = "<div><div id=\"x\" style=\"height:525px\"></div><script>Plotly.newPlot('x')</script></div>";
        let plotly = json!({"application/vnd.plotly.v1+json": {"data": []}, "text/html": page});
        let named = json!({"text/html": page, "text/plain": "<HTML object>"});
        for (data, begin) in [(plotly, "("), (named, "<HTML object>\n(")] {
            let left = sanitized(data);
            let text = left["text/plain"].as_str().unwrap();
            assert!(
                text.starts_with(begin) && text.contains("`text/html` is not shown"),
                "{text}"
            );
            assert_eq!(text.matches("--trust-html").count(), 1, "{text}");
            assert_eq!(left.get("text/html"), None);
        }
        assert_eq!(
            sanitized(json!({"text/html": ""})),
            json!({"text/html": ""})
        );
    }

    #[test]
    fn pictures_must_be_base64_and_png_replaces_svg() {
        let png = json!({"image/png": "iVBORw0KGgo=\n", "image/svg+xml": "<svg></svg>"});
        assert_eq!(sanitized(png), json!({"image/png": "iVBORw0KGgo=\n"}));
        let wrong = sanitized(json!({"image/png": "\" onerror=alert(1)", "text/plain": "x"}));
        assert_eq!(wrong, json!({"text/plain": "x"}));
        let other = sanitized(json!({"image/png": {"a": 1}, "text/plain": ["<b>"]}));
        assert!(other["text/plain"].as_str().unwrap().contains("not shown"));
    }

    #[test]
    fn markdown_stays_markdown_unless_it_has_html_or_addresses() {
        let plain = "# head\n\n*a* `b` $x^2$ [c](https://example.org)";
        assert_eq!(
            sanitized(json!({"text/markdown": plain})),
            json!({"text/markdown": plain})
        );
        for text in [
            "<img src=x onerror=alert(1)> **b**",
            "[x](javascript:alert(1)) **b**",
            "[x](java&#115;cript:alert(1)) **b**",
            "[x](javascript\\:alert(1)) **b**",
            "**b** [x]\n\n[x]: javas\tcript:alert(1)",
            "![](http://example.org/x.png) **b**",
        ] {
            let safe = sanitized(json!({"text/markdown": text}));
            assert!(safe.get("text/markdown").is_none(), "{safe}");
            let html = safe["text/html"].as_str().unwrap();
            assert!(html.contains("<strong>b</strong>"), "{html}");
            for word in ["onerror", "javascript:", "src="] {
                assert!(
                    !html.contains(word) || html.contains("[x]"),
                    "{text}: {html}"
                );
            }
            assert!(!html.contains("href=\"j"), "{html}");
        }
    }

    #[test]
    fn only_layout_metadata_is_kept() {
        let data = bundle(json!({"image/png": "iVBORw0KGgo=", "text/plain": "x"}));
        let metadata = bundle(json!({
            "image/png": {"width": 5, "height": "5", "onload": "alert(1)", "needs_background": "light"},
            "application/javascript": {"x": 1},
            "trusted": true,
            "text/plain": {"y": 1},
        }));
        let (_, metadata_kept) = OutputPolicy::Sanitized.filter_bundle(&data, &metadata);
        assert_eq!(
            metadata_kept,
            json!({"image/png": {"width": 5, "needs_background": "light"}})
        );
    }

    #[test]
    fn a_text_that_is_too_long_to_sanitize_is_not_shown() {
        let long = "<b>".repeat(2 << 20);
        let left = sanitized(json!({"text/html": long, "text/plain": "x"}));
        let text = left["text/plain"].as_str().unwrap();
        assert!(text.starts_with("x\n(`text/html` is not shown"), "{text}");
    }
}
