//! Screenshots: reads pixels from the X server, crops, scales and encodes them.

use super::DisplayRefusal;
use super::connection::{X11Connection, ignore_missing_window, x11_call_failed};
use fast_image_resize::images::Image;
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use std::time::SystemTime;
use x11rb::connection::Connection as _;
use x11rb::protocol::xproto::{ConnectionExt as _, ImageFormat, ImageOrder, Visualtype};

/// Maximum pixels of a side of an enlarged picture.
const MAX_PICTURE_SIDE: f64 = 8192.0;

/// A part of the screen, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScreenRegion {
    pub(crate) x: u16,
    pub(crate) y: u16,
    pub(crate) width: u16,
    pub(crate) height: u16,
}

impl ScreenRegion {
    /// Parses `X,Y,WIDTH,HEIGHT`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let numbers: Vec<u16> = text
            .split(',')
            .map(|number| number.trim().parse().ok())
            .collect::<Option<_>>()?;
        let [x, y, width, height] = *numbers.as_slice() else {
            return None;
        };
        (width > 0 && height > 0).then_some(Self {
            x,
            y,
            width,
            height,
        })
    }

    fn is_within(self, width: u16, height: u16) -> bool {
        let fits = |at: u16, length: u16, whole: u16| {
            at.checked_add(length).is_some_and(|end| end <= whole)
        };
        fits(self.x, self.width, width) && fits(self.y, self.height, height)
    }
}

/// Pixels of a screenshot: red, green and blue, a byte each.
#[derive(Debug, Clone)]
pub(crate) struct ScreenPicture {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) pixels: Vec<u8>,
    /// The size of the whole screen at the time of the screenshot.
    pub(crate) screen_size: (u16, u16),
    pub(crate) captured_at: SystemTime,
}

/// Captures the current content of the screen.
pub(super) fn capture_screen(
    connection: &X11Connection,
    region: Option<ScreenRegion>,
) -> Result<ScreenPicture, DisplayRefusal> {
    let x = &connection.x;
    let root = x.get_geometry(connection.root).map_err(x11_call_failed)?;
    let root = root.reply().map_err(x11_call_failed)?;
    let region = region.unwrap_or(ScreenRegion {
        x: 0,
        y: 0,
        width: root.width,
        height: root.height,
    });
    if !region.is_within(root.width, root.height) {
        let ScreenRegion {
            x,
            y,
            width,
            height,
        } = region;
        return Err(DisplayRefusal::Invalid(format!(
            "the region `{x},{y},{width},{height}` is outside of the screen, which has {}x{} pixels",
            root.width, root.height
        )));
    }
    let (left, top) = (region.x.cast_signed(), region.y.cast_signed());
    let (format, width, height) = (ImageFormat::Z_PIXMAP, region.width, region.height);
    let image = x
        .get_image(format, connection.root, left, top, width, height, !0)
        .map_err(x11_call_failed)?
        .reply();
    let image = match image {
        Ok(image) => image,
        // The screen became smaller since its size was read.
        Err(error) => {
            ignore_missing_window(error)?;
            return Err(DisplayRefusal::Unavailable(
                "the size of the screen changed during the screenshot".into(),
            ));
        }
    };
    let captured_at = SystemTime::now();
    let layout = PixelLayout::for_depth(connection, image.depth)?;
    Ok(ScreenPicture {
        width: width.into(),
        height: height.into(),
        pixels: layout.decode_rgb(&image.data, width.into(), height.into()),
        screen_size: (root.width, root.height),
        captured_at,
    })
}

/// The server's pixel layout.
#[derive(Debug, Clone, Copy)]
struct PixelLayout {
    /// Bytes of a pixel.
    bytes_per_pixel: usize,
    /// Each row starts at a multiple of this many bytes.
    row_alignment: usize,
    is_big_endian: bool,
    color_masks: [u32; 3],
}

impl PixelLayout {
    fn for_depth(connection: &X11Connection, depth: u8) -> Result<Self, DisplayRefusal> {
        let setup = connection.x.setup();
        let screen = connection.default_screen();
        let format = setup.pixmap_formats.iter().find(|f| f.depth == depth);
        let visual = screen
            .allowed_depths
            .iter()
            .flat_map(|depth| &depth.visuals)
            .find(|visual| visual.visual_id == screen.root_visual);
        match (format, visual) {
            (Some(format), Some(visual)) => Ok(Self {
                bytes_per_pixel: usize::from(format.bits_per_pixel).div_ceil(8),
                row_alignment: usize::from(format.scanline_pad).div_ceil(8).max(1),
                is_big_endian: setup.image_byte_order == ImageOrder::MSB_FIRST,
                color_masks: color_masks(visual),
            }),
            _ => Err(DisplayRefusal::Unavailable(format!(
                "the X server does not describe depth {depth}"
            ))),
        }
    }

    fn decode_rgb(self, data: &[u8], width: usize, height: usize) -> Vec<u8> {
        let stride = (width * self.bytes_per_pixel).next_multiple_of(self.row_alignment);
        let mut pixels = vec![0; width * height * 3];
        let rows = pixels.chunks_exact_mut((width * 3).max(1));
        for (target, row) in rows.zip(data.chunks(stride.max(1))) {
            let pairs = target
                .chunks_exact_mut(3)
                .zip(row.chunks_exact(self.bytes_per_pixel.max(1)));
            if self.bytes_per_pixel == 4
                && !self.is_big_endian
                && self.color_masks == BLUE_FIRST_MASKS
            {
                // The usual layout, which this path copies much faster.
                for (target, pixel) in pairs {
                    (target[0], target[1], target[2]) = (pixel[2], pixel[1], pixel[0]);
                }
            } else {
                for (target, pixel) in pairs {
                    target.copy_from_slice(&self.decode_pixel(pixel));
                }
            }
        }
        pixels
    }

    fn decode_pixel(self, bytes: &[u8]) -> [u8; 3] {
        let join = |value: u32, byte: &u8| value << 8 | u32::from(*byte);
        let value = match self.is_big_endian {
            true => bytes.iter().fold(0, join),
            false => bytes.iter().rev().fold(0, join),
        };
        self.color_masks.map(|mask| {
            let (part, max) = (
                value & mask,
                u64::from(mask >> mask.trailing_zeros().min(31)),
            );
            let part = u64::from(part >> mask.trailing_zeros().min(31));
            u8::try_from(part * 255 / max.max(1)).unwrap_or(u8::MAX)
        })
    }
}

const BLUE_FIRST_MASKS: [u32; 3] = [0xff_0000, 0xff00, 0xff];

fn color_masks(visual: &Visualtype) -> [u32; 3] {
    [visual.red_mask, visual.green_mask, visual.blue_mask]
}

impl ScreenPicture {
    /// The picture with its sides multiplied by `scale`. CPU-bound.
    ///
    /// # Errors
    /// When the result would be too large or empty.
    pub(crate) fn scaled(self, scale: f64) -> Result<Self, DisplayRefusal> {
        if (scale - 1.0).abs() < f64::EPSILON {
            return Ok(self);
        }
        let side = |length: u32| (f64::from(length) * scale).round().max(1.0);
        let (wide, high) = (side(self.width), side(self.height));
        if !(scale > 0.0 && scale <= 4.0 && wide <= MAX_PICTURE_SIDE && high <= MAX_PICTURE_SIDE) {
            return Err(DisplayRefusal::Invalid(format!(
                "`{scale}` is not a valid scale: give a number above 0 and at most 4; no side of the picture may exceed {MAX_PICTURE_SIDE} pixels"
            )));
        }
        let broken = |why: String| {
            DisplayRefusal::Unavailable(format!("the picture can't be scaled: {why}"))
        };
        let kind = PixelType::U8x3;
        let source = Image::from_vec_u8(self.width, self.height, self.pixels, kind)
            .map_err(|e| broken(e.to_string()))?;
        let (width, height) = (wide as u32, high as u32);
        let mut target = Image::new(width, height, kind);
        let filter = match scale < 1.0 {
            true => FilterType::Box,
            false => FilterType::Bilinear,
        };
        let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter));
        Resizer::new()
            .resize(&source, &mut target, &options)
            .map_err(|e| broken(e.to_string()))?;
        Ok(Self {
            width,
            height,
            pixels: target.into_vec(),
            ..self
        })
    }

    /// Encodes the picture as a PNG file. CPU-bound.
    pub(crate) fn encode_png(&self) -> Result<Vec<u8>, DisplayRefusal> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, self.width, self.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        // An agent waits for the picture; better compression takes ten times as long.
        encoder.set_compression(png::Compression::Fast);
        let written = encoder
            .write_header()
            .and_then(|mut writer| writer.write_image_data(&self.pixels));
        written.map_err(|e| {
            DisplayRefusal::Unavailable(format!("the picture can't be written: {e}"))
        })?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::{BLUE_FIRST_MASKS, PixelLayout, ScreenPicture, ScreenRegion};
    use std::time::SystemTime;

    #[test]
    fn a_region_is_four_numbers_within_the_screen() {
        let region = ScreenRegion::parse("1, 2,30,40").unwrap();
        assert!(region.is_within(31, 42) && !region.is_within(30, 42) && !region.is_within(31, 41));
        for text in ["", "1,2,3", "1,2,0,4", "-1,2,3,4", "1,2,3,4,5", "a,b,c,d"] {
            assert_eq!(ScreenRegion::parse(text), None, "{text}");
        }
        assert!(
            !ScreenRegion::parse("65535,0,65535,1")
                .unwrap()
                .is_within(10, 10)
        );
    }

    #[test]
    fn pixels_are_read_in_the_layout_of_the_server() {
        let deep = PixelLayout {
            bytes_per_pixel: 4,
            row_alignment: 4,
            is_big_endian: false,
            color_masks: BLUE_FIRST_MASKS,
        };
        let data = [3, 2, 1, 0, 6, 5, 4, 99];
        assert_eq!(deep.decode_rgb(&data, 2, 1), [1, 2, 3, 4, 5, 6]);
        let flat = PixelLayout {
            bytes_per_pixel: 2,
            row_alignment: 4,
            is_big_endian: false,
            color_masks: [0xf800, 0x07e0, 0x001f],
        };
        // One pixel a row, padded to four bytes.
        let data = [0x00, 0xf8, 0, 0, 0xe0, 0x07, 0, 0];
        assert_eq!(flat.decode_rgb(&data, 1, 2), [255, 0, 0, 0, 255, 0]);
    }

    #[test]
    fn a_picture_is_scaled_and_read_back() {
        let picture = ScreenPicture {
            width: 4,
            height: 2,
            pixels: [200, 100, 50].repeat(8),
            screen_size: (4, 2),
            captured_at: SystemTime::now(),
        };
        assert!(picture.clone().scaled(f64::NAN).is_err());
        assert!(picture.clone().scaled(0.0).is_err());
        let half = picture.scaled(0.5).unwrap();
        assert_eq!((half.width, half.height), (2, 1));
        let file = half.encode_png().unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(file))
            .read_info()
            .unwrap();
        let mut pixels = vec![0; 6];
        reader.next_frame(&mut pixels).unwrap();
        assert_eq!(pixels, [200, 100, 50].repeat(2));
    }
}
