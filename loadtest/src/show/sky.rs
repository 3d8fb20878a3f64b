use hongbao::paint::Paint;

/// Rows of the sky.
const HEIGHT: usize = 7;
/// Columns at most; a wider terminal is not filled, so that the figures below stay near.
const WIDTH_MAX: usize = 72;
/// Rows that a packet falls per frame: some hang back, some rush.
const SPEED: (f32, f32) = (0.25, 0.9);
/// In full rain, packets that appear per frame for each column.
const DENSITY: f32 = 0.09;

/// Red packets falling down a few lines of a terminal, as many as are left.
pub struct Sky {
    width: usize,
    falling: Vec<Falling>,
    random: u64,
    owed: f32,
}

struct Falling {
    column: usize,
    row: f32,
    speed: f32,
}

impl Sky {
    pub fn new(terminal_width: usize) -> Sky {
        Sky {
            width: terminal_width.saturating_sub(4).clamp(10, WIDTH_MAX),
            falling: Vec::new(),
            random: 0x9e37_79b9,
            owed: 0.0,
        }
    }

    /// The next frame; `left` is the share of packets still in the pool, 0 to 1.
    pub fn frame(&mut self, left: f32, paint: Paint) -> String {
        for packet in &mut self.falling {
            packet.row += packet.speed;
        }
        self.falling.retain(|packet| packet.row < HEIGHT as f32);
        self.owed += left.clamp(0.0, 1.0) * self.width as f32 * DENSITY;
        while self.owed >= 1.0 {
            self.owed -= 1.0;
            let column = self.draw() as usize % self.width;
            let speed = SPEED.0 + (SPEED.1 - SPEED.0) * (self.draw() % 100) as f32 / 100.0;
            self.falling.push(Falling {
                column,
                row: 0.0,
                speed,
            });
        }
        self.lines(paint).join("\n")
    }

    fn lines(&self, paint: Paint) -> Vec<String> {
        let mut cells = vec![vec![false; self.width]; HEIGHT];
        for packet in &self.falling {
            cells[packet.row as usize][packet.column] = true;
        }
        let line = |row: &Vec<bool>| {
            let cells = row.iter().map(|full| match full {
                true => paint.packet("¥"),
                false => " ".to_owned(),
            });
            let line: String = cells.collect();
            format!("  {}", line.trim_end())
        };
        cells.iter().map(line).collect()
    }

    /// xorshift32: a sky needs no better chance.
    fn draw(&mut self) -> u32 {
        let mut x = self.random as u32;
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        self.random = u64::from(x);
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_fall_while_some_are_left_and_the_sky_clears_afterwards() {
        let mut sky = Sky::new(80);
        let mut full = String::new();
        for _ in 0..40 {
            full = sky.frame(1.0, Paint::PLAIN);
        }
        assert_eq!(full.lines().count(), HEIGHT);
        let packets = full.matches('¥').count();
        assert!((10..200).contains(&packets), "{packets}\n{full}");
        for _ in 0..40 {
            full = sky.frame(0.0, Paint::PLAIN);
        }
        assert!(full.trim().is_empty(), "{full}");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for width in [0, 12, 40, 300] {
            let mut sky = Sky::new(width);
            for _ in 0..30 {
                let frame = sky.frame(1.0, Paint::PLAIN);
                let widest = frame.lines().map(|line| line.chars().count()).max();
                assert!(widest.unwrap() <= width.clamp(12, WIDTH_MAX + 2));
            }
        }
    }
}
