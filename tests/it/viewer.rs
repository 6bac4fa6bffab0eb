//! A VNC client with the functions that a test needs: RFB 3.8, a password, one whole picture.

use des::Des;
use des::cipher::{Array, BlockCipherEncrypt, KeyInit};
use flate2::{Decompress, FlushDecompress};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The longest time that the client waits for anything.
const VIEWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The encodings that the client accepts: raw pixels, pixels packed by zlib, and a separate pointer.
const RAW: i32 = 0;
const ZLIB: i32 = 6;
const POINTER: i32 = -239;

#[derive(Debug)]
pub(crate) struct Viewer {
    stream: TcpStream,
    /// The state of decompression: all rectangles of a connection are one stream.
    zlib: Decompress,
    pub(crate) width: u16,
    pub(crate) height: u16,
}

impl Viewer {
    /// Connects, or returns the text of the refusal.
    pub(crate) fn open(address: &str, password: &str) -> Result<Self, String> {
        Self::try_open(address, password).map_err(|error| error.to_string())
    }

    fn try_open(address: &str, password: &str) -> io::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(VIEWER_TIMEOUT))?;
        assert_eq!(&read::<12>(&mut stream)?, b"RFB 003.008\n");
        stream.write_all(b"RFB 003.008\n")?;
        // The only security type is the password.
        assert_eq!(read(&mut stream)?, [1, 2]);
        stream.write_all(&[2])?;
        let challenge = read(&mut stream)?;
        stream.write_all(&answer(challenge, password))?;
        if u32::from_be_bytes(read(&mut stream)?) != 0 {
            return Err(io::Error::other(text(&mut stream)?));
        }
        stream.write_all(&[1])?;
        let [a, b, c, d] = read(&mut stream)?;
        read::<16>(&mut stream)?;
        text(&mut stream)?;
        let mut viewer = Self {
            stream,
            zlib: Decompress::new(true),
            width: u16::from_be_bytes([a, b]),
            height: u16::from_be_bytes([c, d]),
        };
        viewer.set_encoding(RAW)?;
        Ok(viewer)
    }

    /// Requests pixels packed by zlib from now on.
    pub(crate) fn pack(&mut self) -> io::Result<()> {
        self.set_encoding(ZLIB)
    }

    /// Requests four bytes a pixel, blue first, and the encoding.
    fn set_encoding(&mut self, encoding: i32) -> io::Result<()> {
        let mut words = vec![
            0, 0, 0, 0, 32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 16, 8, 0, 0, 0, 0,
        ];
        words.extend([2, 0, 0, 2]);
        words.extend(encoding.to_be_bytes());
        words.extend(POINTER.to_be_bytes());
        self.stream.write_all(&words)
    }

    /// The whole screen: red, green and blue, a byte each.
    pub(crate) fn picture(&mut self) -> io::Result<Vec<u8>> {
        let (width, height) = (self.width, self.height);
        let mut words = vec![3, 0, 0, 0, 0, 0];
        words.extend(width.to_be_bytes());
        words.extend(height.to_be_bytes());
        self.stream.write_all(&words)?;
        let mut picture = vec![0; usize::from(width) * usize::from(height) * 3];
        let mut missing = usize::from(width) * usize::from(height);
        while missing > 0 {
            missing -= self.update(&mut picture)?;
        }
        Ok(picture)
    }

    /// Reads one message; the number of pixels in it.
    fn update(&mut self, picture: &mut [u8]) -> io::Result<usize> {
        match read::<1>(&mut self.stream)? {
            [0] => {}
            // A bell, and the clipboard's text.
            [2] => return Ok(0),
            [3] => {
                read::<3>(&mut self.stream)?;
                text(&mut self.stream)?;
                return Ok(0);
            }
            other => panic!("message {other:?}"),
        }
        let [_, high, low] = read(&mut self.stream)?;
        let mut brought = 0;
        for _ in 0..u16::from_be_bytes([high, low]) {
            brought += self.rectangle(picture)?;
        }
        Ok(brought)
    }

    /// A rectangle continues the compressed stream of the last rectangle.
    fn unpack(&mut self, pixels: &mut [u8]) -> io::Result<()> {
        let mut bytes = vec![0; u32::from_be_bytes(read(&mut self.stream)?) as usize];
        self.stream.read_exact(&mut bytes)?;
        let before = self.zlib.total_out();
        let sync = FlushDecompress::Sync;
        self.zlib.decompress(&bytes, pixels, sync)?;
        let brought = self.zlib.total_out() - before;
        assert_eq!(brought, pixels.len() as u64, "bytes of a rectangle");
        Ok(())
    }

    fn rectangle(&mut self, picture: &mut [u8]) -> io::Result<usize> {
        let head: [u8; 12] = read(&mut self.stream)?;
        let number = |at: usize| usize::from(u16::from_be_bytes([head[at], head[at + 1]]));
        let (x, y, width, height) = (number(0), number(2), number(4), number(6));
        let encoding = i32::from_be_bytes([head[8], head[9], head[10], head[11]]);
        let mut pixels = vec![0; width * height * 4];
        match encoding {
            ZLIB => self.unpack(&mut pixels)?,
            _ => self.stream.read_exact(&mut pixels)?,
        }
        if encoding == POINTER {
            let mut mask = vec![0; width.div_ceil(8) * height];
            self.stream.read_exact(&mut mask)?;
            return Ok(0);
        }
        for (row, line) in pixels.chunks_exact(width * 4).enumerate() {
            let begin = ((y + row) * usize::from(self.width) + x) * 3;
            let target = picture[begin..begin + width * 3].chunks_exact_mut(3);
            for (target, pixel) in target.zip(line.chunks_exact(4)) {
                target.copy_from_slice(&[pixel[2], pixel[1], pixel[0]]);
            }
        }
        Ok(width * height)
    }
}

fn read<const N: usize>(stream: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn text(stream: &mut TcpStream) -> io::Result<String> {
    let mut bytes = vec![0; u32::from_be_bytes(read(stream)?) as usize];
    stream.read_exact(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The answer to the password's challenge, with the bits of each byte reversed, as the protocol requires.
fn answer(challenge: [u8; 16], password: &str) -> Vec<u8> {
    let mut key = [0; 8];
    for (place, byte) in key.iter_mut().zip(password.bytes()) {
        *place = byte.reverse_bits();
    }
    let cipher = Des::new(&Array::from(key));
    let blocks = challenge.chunks_exact(8).flat_map(|block| {
        let mut block = Array::from(<[u8; 8]>::try_from(block).unwrap());
        cipher.encrypt_block(&mut block);
        block.to_vec()
    });
    blocks.collect()
}
