//! HTML, SVG, Markdown and TeX without active content: no script, no event handler, no style sheet, no address that
//! runs code, and no image from elsewhere.
//!
//! Front ends of Jupyter trust the outputs of cells that the person runs and evaluate their scripts in Jupyter's own
//! page, which can start programs on the person's machine. A browser runs the scripts of a saved figure. The code in
//! the container is not trusted with either.

mod allowed;
mod markdown;
mod tex;

pub(crate) use markdown::{markdown_as_html, plain_markdown};
pub(crate) use tex::disable_active_tex;

use allowed::{HTML_STYLES, SVG_ATTRIBUTES, SVG_STYLES, SVG_TAGS};
use ammonia::{Builder, UrlRelative};
use std::borrow::Cow;
use std::sync::LazyLock;

/// Classes with these prefixes belong to JupyterLab's own page.
const PAGE_CLASSES: [&str; 6] = ["jp-", "lm-", "p-", "bp", "cm-", "fa"];
/// The keyword that makes a page draw a text as a diagram, in a class or after a fence.
const DIAGRAM_KEYWORD: &str = "mermaid";

static HTML_SANITIZER: LazyLock<Builder<'static>> = LazyLock::new(|| {
    let mut builder = Builder::default();
    builder
        // A `wbr` does not end a TeX command.
        .rm_tags(["area", "map", "wbr"])
        .add_tags(["tfoot"])
        .add_generic_attributes(["class", "style", "align", "valign", "dir"])
        .add_tag_attributes("table", ["border", "cellpadding", "cellspacing", "width"])
        .add_tag_attributes("details", ["open"])
        .filter_style_properties(HTML_STYLES.into())
        .url_schemes(["http", "https", "mailto", "data"].into())
        .url_relative(UrlRelative::Deny)
        .set_tag_attribute_value("a", "target", "_blank")
        .attribute_filter(|element, attribute, value| match (element, attribute) {
            (_, "class") => Some(filter_classes(value)),
            (_, "style") => has_no_address(value).then_some(value.into()),
            ("img", "src") => is_picture(value).then_some(value.into()),
            (_, "href" | "src" | "cite") => is_external_address(value).then_some(value.into()),
            _ => Some(value.into()),
        });
    builder
});

static SVG_SANITIZER: LazyLock<Builder<'static>> = LazyLock::new(|| {
    let mut builder = Builder::empty();
    builder
        .add_tags(SVG_TAGS)
        .add_clean_content_tags(["script", "style", "metadata", "foreignObject"])
        .add_generic_attributes(SVG_ATTRIBUTES)
        .filter_style_properties(SVG_STYLES.into())
        .url_schemes(["data"].into())
        .url_relative(UrlRelative::PassThrough)
        .link_rel(None)
        .attribute_filter(|element, attribute, value| match (element, attribute) {
            (_, "class") => Some(filter_classes(value)),
            ("image", "href") => is_picture(value).then_some(value.into()),
            // Another part of the same picture.
            (_, "href") => value.starts_with('#').then_some(value.into()),
            _ => has_no_address(value).then_some(value.into()),
        });
    builder
});

/// HTML without active content.
pub(crate) fn sanitize_html(html: &str) -> String {
    disable_active_tex(&HTML_SANITIZER.clean(html).to_string()).into_owned()
}

/// Whether sanitized HTML has visible content.
pub(crate) fn has_visible_content(html: &str) -> bool {
    let mut outside = html
        .split('<')
        .enumerate()
        .map(|(number, part)| match number {
            0 => part,
            _ => part.split_once('>').map_or("", |(_, text)| text),
        });
    outside.any(|text| !text.replace("&nbsp;", "").trim().is_empty())
        || ["<img", "<table", "<hr"]
            .iter()
            .any(|tag| html.contains(tag))
}

/// A picture without active content; `None` if the text is not a picture.
pub(crate) fn sanitize_svg(svg: &str) -> Option<String> {
    const SVG_NAMESPACES: &str =
        r#"<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink""#;
    let clean = SVG_SANITIZER.clean(svg).to_string();
    let (_, drawn) = clean.split_once("<svg")?;
    let (drawn, _) = drawn.rsplit_once("</svg>")?;
    // Front ends parse the result as XML, which does not define this entity.
    Some(format!(
        "{SVG_NAMESPACES}{}</svg>",
        drawn.replace("&nbsp;", "&#160;")
    ))
}

fn filter_classes(value: &str) -> Cow<'_, str> {
    let is_own = |class: &&str| {
        !PAGE_CLASSES.iter().any(|prefix| class.starts_with(prefix))
            && !class.to_ascii_lowercase().contains(DIAGRAM_KEYWORD)
    };
    let own: Vec<&str> = value.split_ascii_whitespace().filter(is_own).collect();
    own.join(" ").into()
}

/// Whether a style or presentation value refers to nothing outside its picture. A backslash may hide a reference.
fn has_no_address(value: &str) -> bool {
    let lower = value.to_ascii_lowercase();
    let mut addresses = lower.match_indices("url(");
    let is_inside = |(at, found): (usize, &str)| {
        lower[at + found.len()..]
            .trim_start_matches([' ', '"', '\''])
            .starts_with('#')
    };
    addresses.all(is_inside)
        && !lower.contains(['\\', '@'])
        && !has_negative_length(&lower)
        && !["image(", "image-set(", "expression(", "javascript:"]
            .iter()
            .any(|word| lower.contains(word))
}

/// A negative margin moves an output over the page around it.
fn has_negative_length(style: &str) -> bool {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let mut margins = style
        .split(';')
        .filter(|one| one.trim_start().starts_with("margin"));
    margins.any(|margin| {
        let mut signs = margin.match_indices('-');
        signs.any(|(at, _)| margin[at + 1..].starts_with(is_number))
    })
}

/// A picture embedded in the address; loading one from a server would reveal that the person views it.
fn is_picture(value: &str) -> bool {
    let kinds = ["png", "jpeg", "gif", "webp"];
    let is_it = |kind: &str| value.starts_with(&format!("data:image/{kind};base64,"));
    kinds.into_iter().any(is_it)
}

/// Whether an address is a complete web or mail address, independent of the page: `https:x` is a path of the page's own
/// server.
fn is_external_address(value: &str) -> bool {
    let begin = value.trim_start().chars().take(8);
    let begin: String = begin.flat_map(char::to_lowercase).collect();
    ["http://", "https://", "mailto:"]
        .iter()
        .any(|scheme| begin.starts_with(scheme))
}

#[cfg(test)]
mod tests {
    use super::{
        disable_active_tex, has_visible_content, markdown_as_html, plain_markdown, sanitize_html,
        sanitize_svg,
    };

    /// Known ways to make a page run code, or load a resource from another server.
    const ATTACKS: [&str; 54] = [
        "<script>alert(1)</script>",
        "<scr<script>ipt>alert(1)</scr</script>ipt>",
        "<img src=x onerror=alert(1)>",
        "<img src=`x`onerror=alert(1)>",
        "<IMG SRC=\"jav&#x0A;ascript:alert(1);\">",
        "<img src=\"http://attacker.example/x.png\">",
        "<img srcset=\"http://attacker.example/x.png\">",
        "<img src=\"data:image/svg+xml;base64,PHN2Zy8+\">",
        "<a href=javascript:alert(1)>x</a>",
        "<a href=\"jAvAsCrIpT&colon;alert(1)\">x</a>",
        "<a href=\"\u{1}javascript:alert(1)\">x</a>",
        "<a href=\"java\tscript:alert(1)\">x</a>",
        "<a href=\"data:text/html,<script>alert(1)</script>\">x</a>",
        "<a href=\"vbscript:alert(1)\">x</a>",
        "<a href=\"/files/attack.html\">x</a>",
        "<a href=\"files/attack.html\">x</a>",
        "<a href=\"https:files/attack.html\">x</a>",
        "<a href=\"HTTP:/files/attack.html\">x</a>",
        "<pre class=\"mermaid\"><code class=\"language-Mermaid\">graph</code></pre>",
        "<a href=\"//attacker.example/\" ping=\"http://attacker.example\" onclick=alert(1)>x</a>",
        "<area href=\"javascript:alert(1)\">",
        "<svg onload=alert(1)>",
        "<svg><script>alert(1)</script></svg>",
        "<svg><script xlink:href=\"data:,alert(1)\"/></svg>",
        "<svg><a xlink:href=\"javascript:alert(1)\"><text>x</text></a></svg>",
        "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
        "<svg><set attributeName=\"href\" to=\"javascript:alert(1)\"/></svg>",
        "<svg><foreignObject><iframe src=\"javascript:alert(1)\"></iframe></foreignObject></svg>",
        "<svg><use href=\"data:image/svg+xml;base64,PHN2Zy8+#x\"/></svg>",
        "<svg><use xlink:href=\"http://attacker.example/x.svg#x\"/></svg>",
        "<svg><image href=\"http://attacker.example/x.png\"/></svg>",
        "<svg><image href=\"data:image/svg+xml;base64,PHN2Zy8+\"/></svg>",
        "<svg><image xlink:href=\"data:text/html,<script>alert(1)</script>\"/></svg>",
        "<svg><use href=\"data:image/png;base64,iVBORw0KGgo=\"/></svg>",
        "<svg><title><style><a title=\"</style><img src=x onerror=alert(1)>\"></title></svg>",
        "<svg><rect fill=\"url(http://attacker.example/x)\"/></svg>",
        "<svg><rect style=\"fill:url('http://attacker.example/x')\"/></svg>",
        "<svg><style>@import url(http://attacker.example/x.css);</style></svg>",
        "<svg></p><style><a id=\"</style><img src=1 onerror=alert(1)>\">",
        "<math><mtext><table><mglyph><style><!--</style><img title=\"--&gt;&lt;img src=1 onerror=alert(1)&gt;\">",
        "<math><a xlink:href=\"javascript:alert(1)\">x</a></math>",
        "<noscript><p title=\"</noscript><img src=x onerror=alert(1)>\">",
        "<iframe src=\"javascript:alert(1)\"></iframe>",
        "<iframe srcdoc=\"<script>alert(1)</script>\"></iframe>",
        "<object data=\"javascript:alert(1)\"></object><embed src=\"javascript:alert(1)\">",
        "<form action=\"javascript:alert(1)\"><button formaction=\"javascript:alert(1)\">x</button></form>",
        "<meta http-equiv=refresh content=\"0;url=javascript:alert(1)\"><base href=\"javascript:alert(1)//\">",
        "<link rel=stylesheet href=\"http://attacker.example/x.css\">",
        "<style>body{background:url(http://attacker.example/x)}</style>",
        "<div style=\"background:url(http://attacker.example/x)\">x</div>",
        "<div style=\"position:fixed;top:0;left:0;width:100%;height:100%;margin:-500px\">x</div>",
        "<div class=\"jp-Dialog lm-Widget\" data-commandlinker-command=\"terminal:create-new\" id=main>x</div>",
        "<details open ontoggle=alert(1)><summary>x</summary></details>",
        "<video poster=\"http://attacker.example/x\" autoplay onloadstart=alert(1)><source onerror=alert(1)></video>",
    ];

    fn check(clean: &str, attack: &str) {
        let lower = clean.to_ascii_lowercase();
        let tags: Vec<&str> = lower
            .split('<')
            .skip(1)
            .map(|tag| tag.split('>').next().unwrap_or(tag))
            .collect();
        for tag in tags {
            for element in [
                "script",
                "style",
                "iframe",
                "object",
                "embed",
                "form",
                "meta",
                "base",
                "link",
                "foreignobject",
                "animate",
                "set",
                "video",
                "source",
                "math",
                "area",
                "noscript",
            ] {
                assert!(
                    !tag.starts_with(element),
                    "`{element}` of {attack} is in {clean}"
                );
            }
            for word in [
                " on",
                "javascript:",
                "vbscript:",
                "data:",
                "attacker",
                "files/",
                "mermaid",
                "position",
                "-500px",
                "jp-",
                "lm-",
                "data-",
                "id=\"main",
                "ping",
                "srcset",
                "poster",
            ] {
                assert!(!tag.contains(word), "`{word}` of {attack} is in {clean}");
            }
        }
    }

    #[test]
    fn html_svg_and_markdown_have_no_active_content_after_sanitizing() {
        for attack in ATTACKS {
            check(&sanitize_html(attack), attack);
            // Sanitize twice, as a page parses the result again.
            check(&sanitize_html(&sanitize_html(attack)), attack);
            for svg in [attack.to_owned(), format!("<svg>{attack}</svg>")] {
                check(&sanitize_svg(&svg).unwrap_or_default(), attack);
            }
            assert_eq!(plain_markdown(attack), None, "{attack}");
            check(&markdown_as_html(attack), attack);
        }
    }

    #[test]
    fn a_table_of_pandas_keeps_its_shape() {
        let table = "<div>\n<style scoped>.dataframe { x: y }</style>\n<table border=\"1\" class=\"dataframe\">\n\
            <thead><tr style=\"text-align: right;\"><th></th><th>a</th></tr></thead>\n\
            <tbody><tr><th>0</th><td style=\"background-color: #ff0000; color: white\" class=\"data row0\" colspan=\"2\">1</td></tr></tbody>\n</table>\n</div>";
        let clean = sanitize_html(table);
        for expected in [
            "<table border=\"1\" class=\"dataframe\">",
            "text-align:right",
            "<th>0</th>",
            "background-color:#ff0000",
            "class=\"data row0\"",
            "colspan=\"2\"",
        ] {
            assert!(
                clean.replace(": ", ":").contains(expected),
                "{expected}: {clean}"
            );
        }
        assert!(!clean.contains("dataframe {"), "{clean}");
        let link = sanitize_html("<a href=\"https://example.org/x\">x</a>");
        assert!(
            link.contains("href=\"https://example.org/x\"") && link.contains("_blank"),
            "{link}"
        );
        let picture = "<img src=\"data:image/png;base64,iVBORw0KGgo=\" alt=\"x\">";
        assert!(sanitize_html(picture).contains("base64,iVBORw0KGgo="));
    }

    #[test]
    fn a_drawing_of_matplotlib_keeps_its_lines() {
        let svg = "<?xml version=\"1.0\"?>\n<!DOCTYPE svg PUBLIC \"-//W3C//DTD SVG 1.1//EN\" \"http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd\">\n\
            <svg xmlns:xlink=\"http://www.w3.org/1999/xlink\" width=\"4pt\" viewBox=\"0 0 4 3\" xmlns=\"http://www.w3.org/2000/svg\" version=\"1.1\">\n\
            <metadata><rdf>Matplotlib</rdf></metadata><defs><style type=\"text/css\">*{stroke-linejoin: round}</style></defs>\n\
            <g id=\"figure_1\"><path d=\"M 0 1 L 2 3 z\" clip-path=\"url(#p1)\" style=\"fill: #ffffff; stroke: none\"/>\
            <use xlink:href=\"#m1\" x=\"1\" y=\"2\"/><linearGradient id=\"g\"/><text>a &amp; b\u{a0}c</text>\
            <title>one</title><desc>two</desc><image href=\"data:image/png;base64,iVBORw0KGgo=\" width=\"9\"/>\
            <image xlink:href=\"data:image/png;base64,\niVBORw0KGgoB\" style=\"image-rendering: pixelated\"/></g></svg>";
        let clean = sanitize_svg(svg).unwrap();
        for expected in [
            "<svg xmlns=\"http://www.w3.org/2000/svg\"",
            "viewBox=\"0 0 4 3\"",
            "d=\"M 0 1 L 2 3 z\"",
            "clip-path=\"url(#p1)\"",
            "href=\"#m1\"",
            "<linearGradient id=\"g\">",
            "a &amp; b&#160;c",
            "<title>one</title><desc>two</desc>",
            "href=\"data:image/png;base64,iVBORw0KGgo=\"",
            "href=\"data:image/png;base64,\niVBORw0KGgoB\"",
            "image-rendering:pixelated",
        ] {
            assert!(clean.contains(expected), "{expected}: {clean}");
        }
        assert_eq!(clean.matches("xmlns=").count(), 1, "{clean}");
        assert!(
            !clean.contains("Matplotlib") && !clean.contains("linejoin"),
            "{clean}"
        );
        assert_eq!(sanitize_svg("no picture"), None);
    }

    #[test]
    fn formulas_stay_and_active_tex_commands_are_disabled() {
        for tex in [
            "$\\frac{a}{b} \\alpha \\hat{x}$",
            "$$\\begin{matrix} a \\\\ b \\end{matrix}$$",
        ] {
            assert_eq!(disable_active_tex(tex), tex);
        }
        for tex in [
            "$\\href{javascript:alert(1)}{x}$",
            "$\\\\href{javascript:alert(1)}{x}$",
            "$\\url{javascript:alert(1)}$",
            "$\\require{html}\\cssId{x}{y}$",
            "$\\htmlData{a=b}{x}$",
            "$\\HREF{x}$",
            "$\\mmlToken{mi}[href=\"javascript:alert(1)\"]{x}$",
            "$\\bbox[position:fixed;background:url(http://attacker.example)]{x}$",
            "$\\unicode[x;background:url(http://attacker.example)]{x41}$",
            "$\\unicode [x;background:url(http://attacker.example)]{x41}$",
            "$\\unicode\n\t[x;background:url(http://attacker.example)]{x41}$",
            "$\\unicode<br>[x;background:url(http://attacker.example)]{x41}$",
            "$\\csname href\\endcsname{javascript:alert(1)}{x}$",
        ] {
            let quiet = disable_active_tex(tex);
            assert_ne!(quiet, tex);
            assert_eq!(disable_active_tex(&quiet), quiet);
        }
        // A reference that becomes a backslash only when the page is rendered.
        let html = sanitize_html("$&#92;href{javascript:alert(1)}{x}$");
        assert!(!html.contains('\\'), "{html}");
        // A possible line break does not end a command.
        let html = sanitize_html("$\\hr<wbr>ef{javascript:alert(1)}{x} \\mml<!-- -->Token$");
        assert!(!html.contains('\\'), "{html}");
        let markdown =
            markdown_as_html("&dollar;&bsol;href{javascript:alert(1)}{x}&dollar; $\\alpha_1$");
        assert!(
            !markdown.contains("\\href") && markdown.contains("$\\alpha_1$"),
            "{markdown}"
        );
    }

    #[test]
    fn links_of_markdown_lead_to_no_file_of_the_server() {
        for text in [
            "[x](files/attack.html)",
            "[x]( /files/attack.html)",
            "[x](https:files/attack.html)",
            "[x](attack.ipynb \"title\")",
            "[x][y]\n\n[y]:\n  files/attack.html",
            "~~~ mermaid\ngraph\n~~~",
            "> ```Mermaid\n> graph\n> ```",
        ] {
            assert_eq!(plain_markdown(text), None, "{text}");
            let html = markdown_as_html(text);
            assert!(!html.contains("href"), "{text}: {html}");
            check(&html, text);
        }
        for text in [
            "[x](https://example.org/files/x) [y](mailto:a@example.org) [z] (a)",
            "```python\nx[1]\n```",
        ] {
            assert!(plain_markdown(text).is_some(), "{text}");
        }
    }

    #[test]
    fn a_page_of_scripts_shows_nothing_after_sanitizing() {
        for html in [
            "<div><script>plot()</script></div>",
            "<div id=\"x\" style=\"height:400px\"></div>\n<p>&nbsp;</p>",
            "",
        ] {
            assert!(!has_visible_content(&sanitize_html(html)), "{html}");
        }
        for html in ["x", "<b>x</b>", "<img src=\"data:image/png;base64,aa==\">"] {
            assert!(has_visible_content(&sanitize_html(html)), "{html}");
        }
    }
}
