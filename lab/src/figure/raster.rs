//! SVG to PNG, so that both show the same.

use anyhow::{Context, Result};
use resvg::{tiny_skia, usvg};
use std::sync::Arc;

/// Pixels for each unit of the drawing.
const SCALE: f32 = 1.5;
/// Fonts for `sans-serif`, the first that is installed.
const FAMILIES: [&str; 6] = ["DejaVu Sans", "Liberation Sans", "Noto Sans", "Open Sans", "Arial", "Helvetica"];

/// Draws SVG into pixels with the machine's fonts.
pub struct Raster {
    options: usvg::Options<'static>,
    has_fonts: bool,
}

impl Raster {
    /// With the fonts of this machine.
    pub fn new() -> Raster {
        let mut fonts = usvg::fontdb::Database::new();
        fonts.load_system_fonts();
        let there = |family: &&str| fonts.faces().any(|face| face.families.iter().any(|(name, _)| name == family));
        let any = || fonts.faces().next().and_then(|face| face.families.first().map(|(name, _)| name.clone()));
        let chosen = FAMILIES.iter().find(|family| there(family)).map(|family| (*family).to_owned()).or_else(any);
        let has_fonts = chosen.is_some();
        if let Some(family) = chosen {
            fonts.set_sans_serif_family(family);
        }
        Raster { options: usvg::Options { fontdb: Arc::new(fonts), ..usvg::Options::default() }, has_fonts }
    }

    /// Whether there are fonts; without any, drawings have no text.
    pub fn has_fonts(&self) -> bool {
        self.has_fonts
    }

    /// The PNG file's bytes.
    ///
    /// # Errors
    /// When the drawing cannot be read.
    pub fn png(&self, svg: &str) -> Result<Vec<u8>> {
        let tree = usvg::Tree::from_str(svg, &self.options).context("could not read a drawing")?;
        let (width, height) = (tree.size().width() * SCALE, tree.size().height() * SCALE);
        let mut pixels = tiny_skia::Pixmap::new(width.ceil() as u32, height.ceil() as u32).context("no such size")?;
        resvg::render(&tree, tiny_skia::Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
        pixels.encode_png().context("could not write pixels")
    }
}

impl Default for Raster {
    fn default() -> Raster {
        Raster::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_leaves_pixels() {
        let raster = Raster::new();
        if !raster.has_fonts() {
            eprintln!("skipped: this machine has no fonts");
            return;
        }
        let svg = |text: &str| {
            format!(
                "<svg xmlns='http://www.w3.org/2000/svg' width='100' height='40'><rect width='100' height='40' \
                 fill='white'/><text x='4' y='30' font-family='sans-serif' font-size='20'>{text}</text></svg>"
            )
        };
        let (with, without) = (raster.png(&svg("Mpps")).unwrap(), raster.png(&svg("")).unwrap());
        assert!(with.starts_with(b"\x89PNG") && with.len() > without.len() + 100, "{} {}", with.len(), without.len());
    }
}
