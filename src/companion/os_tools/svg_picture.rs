//! Draws SVG as PNG, because the interfaces of models accept no SVG.

use resvg::tiny_skia::{Color, Pixmap, Transform};
use resvg::usvg::{Options, Tree};

/// A longer drawing is not drawn.
const MAX_SVG_BYTES: usize = 4 << 20;
/// The most pixels of the longer side; models see no more detail.
const MAX_SVG_PICTURE_SIDE: f32 = 2000.0;

/// Draws on white, at the drawing's own size or smaller. Returns `None` if the text is no SVG or too large. Blocks the
/// thread.
pub(super) fn draw_svg(svg: &str) -> Option<Vec<u8>> {
    if svg.len() > MAX_SVG_BYTES {
        return None;
    }
    let mut options = Options::default();
    // A drawing must not show files.
    options.image_href_resolver.resolve_string = Box::new(|_, _| None);
    let fonts = options.fontdb_mut();
    fonts.load_system_fonts();
    fonts.set_serif_family("Liberation Serif");
    fonts.set_sans_serif_family("Liberation Sans");
    fonts.set_monospace_family("Liberation Mono");
    let tree = Tree::from_str(svg, &options).ok()?;
    let size = tree.size();
    let scale = (MAX_SVG_PICTURE_SIDE / size.width().max(size.height())).min(1.0);
    let pixels = |length: f32| (length * scale).ceil().max(1.0) as u32;
    let mut picture = Pixmap::new(pixels(size.width()), pixels(size.height()))?;
    picture.fill(Color::WHITE);
    let transform = Transform::from_scale(scale, scale);
    resvg::render(&tree, transform, &mut picture.as_mut());
    picture.encode_png().ok()
}

#[cfg(test)]
mod tests {
    use super::draw_svg;
    use resvg::tiny_skia::Pixmap;

    #[test]
    fn a_drawing_becomes_pixels() {
        let svg = r##"<svg xmlns="http://www.w3.org/2000/svg" width="4000" height="20"><rect x="2000" width="2000" height="20" fill="#ff0000"/></svg>"##;
        let picture = Pixmap::decode_png(&draw_svg(svg).unwrap()).unwrap();
        assert_eq!((picture.width(), picture.height()), (2000, 10));
        let colour = |x| {
            let pixel = picture.pixel(x, 5).unwrap();
            (pixel.red(), pixel.green(), pixel.blue())
        };
        assert_eq!((colour(10), colour(1990)), ((255, 255, 255), (255, 0, 0)));
    }

    #[test]
    fn a_text_that_is_no_drawing_is_not_drawn() {
        assert!(draw_svg("<p>").is_none());
        assert!(draw_svg(&" ".repeat(5 << 20)).is_none());
    }

    #[test]
    fn a_drawing_shows_no_files() {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("a.svg");
        std::fs::write(&secret, r#"<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>"#).unwrap();
        let svg = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><image width="9" height="9" href="{}"/></svg>"#,
            secret.display()
        );
        let picture = Pixmap::decode_png(&draw_svg(&svg).unwrap()).unwrap();
        assert_eq!(picture.pixel(4, 4).unwrap().red(), 255);
    }
}
