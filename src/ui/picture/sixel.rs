//! Sixel encoding: pixels as text, six rows at a time, for terminals without a file protocol.

use icy_sixel::SixelImage;

/// Maximum size of an unpacked picture; a larger one is not shown.
const MAX_PIXEL_BYTES: usize = 256 << 20;

/// Red, green, blue and opacity of each pixel, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PixelBuffer {
    width: usize,
    height: usize,
    bytes: Vec<u8>,
}

/// Encodes the PNG, scaled down to `width` pixels if it is wider; `None` when it can't be decoded.
pub(super) fn encode_sixel(png: &[u8], width: usize) -> Option<String> {
    let PixelBuffer {
        width,
        height,
        bytes,
    } = decode_png(png)?.scale_to_width(width.max(1));
    let image = SixelImage::try_from_rgba(bytes, width, height).ok()?;
    Some(image.encode().ok()? + "\n")
}

fn decode_png(file: &[u8]) -> Option<PixelBuffer> {
    let mut decoder = png::Decoder::new(std::io::Cursor::new(file));
    decoder.set_limits(png::Limits {
        bytes: MAX_PIXEL_BYTES,
    });
    decoder.set_transformations(
        png::Transformations::normalize_to_color8() | png::Transformations::ALPHA,
    );
    let mut reader = decoder.read_info().ok()?;
    let size = reader
        .output_buffer_size()
        .filter(|s| *s <= MAX_PIXEL_BYTES)?;
    let mut bytes = vec![0; size];
    let frame = reader.next_frame(&mut bytes).ok()?;
    bytes.truncate(frame.buffer_size());
    let bytes = match frame.color_type {
        png::ColorType::Rgba => bytes,
        png::ColorType::GrayscaleAlpha => bytes
            .chunks_exact(2)
            .flat_map(|pixel| [pixel[0], pixel[0], pixel[0], pixel[1]])
            .collect(),
        _ => return None,
    };
    Some(PixelBuffer {
        width: usize::try_from(frame.width).ok()?,
        height: usize::try_from(frame.height).ok()?,
        bytes,
    })
}

impl PixelBuffer {
    /// Scales down: each pixel is the mean of its source pixels.
    fn scale_to_width(self, width: usize) -> Self {
        if self.width <= width {
            return self;
        }
        let height = (self.height * width / self.width).max(1);
        let mut bytes = Vec::with_capacity(width * height * 4);
        for row in 0..height {
            let rows = source_span(row, height, self.height);
            for column in 0..width {
                let columns = source_span(column, width, self.width);
                bytes.extend(self.mean_pixel(rows.clone(), columns));
            }
        }
        Self {
            width,
            height,
            bytes,
        }
    }

    fn mean_pixel(&self, rows: std::ops::Range<usize>, columns: std::ops::Range<usize>) -> [u8; 4] {
        let count = rows.len() * columns.len();
        let (mut colour, mut opacity) = ([0; 3], 0);
        for row in rows {
            for column in columns.clone() {
                let at = (row * self.width + column) * 4;
                let pixel = &self.bytes[at..at + 4];
                // Colours are weighted by their opacity.
                let weight = usize::from(pixel[3]);
                for (sum, value) in colour.iter_mut().zip(pixel) {
                    *sum += usize::from(*value) * weight;
                }
                opacity += weight;
            }
        }
        let mean = |sum: usize, of: usize| u8::try_from(sum / of.max(1)).unwrap_or(u8::MAX);
        let [red, green, blue] = colour.map(|sum| mean(sum, opacity));
        [red, green, blue, mean(opacity, count)]
    }
}

/// The range among `many` source pixels that the `number`th of `few` pixels covers.
fn source_span(number: usize, few: usize, many: usize) -> std::ops::Range<usize> {
    let begin = number * many / few;
    begin..((number + 1) * many / few).max(begin + 1)
}

#[cfg(test)]
mod tests {
    use super::{PixelBuffer, decode_png, encode_sixel};
    use icy_sixel::SixelImage;

    const RED: [u8; 4] = [255, 0, 0, 255];
    const BLUE: [u8; 4] = [0, 0, 255, 255];

    /// A picture with a red left half and a blue right half.
    fn halves(width: usize, height: usize) -> Vec<u8> {
        let row = (0..width).flat_map(|x| if x < width / 2 { RED } else { BLUE });
        row.collect::<Vec<u8>>().repeat(height)
    }

    fn png(width: usize, height: usize, color: png::ColorType, bytes: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, width as u32, height as u32);
        encoder.set_color(color);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(bytes).unwrap();
        writer.finish().unwrap();
        file
    }

    fn shown(file: &[u8], width: usize) -> SixelImage {
        SixelImage::decode(encode_sixel(file, width).unwrap().as_bytes()).unwrap()
    }

    #[test]
    fn the_encoded_pixels_are_the_picture() {
        let file = png(40, 12, png::ColorType::Rgba, &halves(40, 12));
        let image = shown(&file, 400);
        assert_eq!((image.width, image.height), (40, 12));
        assert_eq!(image.pixels, halves(40, 12));
    }

    #[test]
    fn a_wide_picture_is_scaled_down_to_the_terminal() {
        let file = png(400, 120, png::ColorType::Rgba, &halves(400, 120));
        let image = shown(&file, 40);
        assert_eq!((image.width, image.height), (40, 12));
        assert_eq!(image.pixels, halves(40, 12));
        let line = png(400, 1, png::ColorType::Rgba, &halves(400, 1));
        assert_eq!(decode_png(&line).unwrap().scale_to_width(7).height, 1);
    }

    #[test]
    fn scaling_ignores_the_colour_of_transparent_pixels() {
        let pixels = PixelBuffer {
            width: 2,
            height: 1,
            bytes: [RED, [0, 0, 255, 0]].concat(),
        };
        assert_eq!(pixels.scale_to_width(1).bytes, [255, 0, 0, 127]);
    }

    #[test]
    fn every_form_of_png_is_read() {
        use png::ColorType::{Grayscale, GrayscaleAlpha, Rgb};
        let read = |color, bytes: &[u8]| decode_png(&png(1, 1, color, bytes)).unwrap().bytes;
        assert_eq!(read(Rgb, &[1, 2, 3]), [1, 2, 3, 255]);
        assert_eq!(read(Grayscale, &[7]), [7, 7, 7, 255]);
        assert_eq!(read(GrayscaleAlpha, &[7, 9]), [7, 7, 7, 9]);
    }

    #[test]
    fn a_file_that_is_not_a_png_is_not_shown() {
        assert_eq!(encode_sixel(b"GIF89a", 80), None);
        assert_eq!(encode_sixel(b"", 80), None);
        let file = png(4, 4, png::ColorType::Rgba, &halves(4, 4));
        assert_eq!(encode_sixel(&file[..file.len() / 2], 80), None);
    }
}
