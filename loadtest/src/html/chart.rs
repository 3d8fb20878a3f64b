//! A chart: lines drawn as SVG that is stretched to the width of its card, and around them labels of the page's own, which keep their size on a phone.

use std::fmt::Write as _;

/// Lines are drawn in a square of this size.
const SIZE: f64 = 1_000.0;
/// Labels of an axis, at most.
const LABELS_X: usize = 8;
const LABELS_Y: usize = 9;
/// More points than this have no explanation each: the page would grow.
const EXPLAINED_MAX: usize = 700;

/// Where a value stands on an axis, from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    /// What is written at which values; the second is left out where there is little room.
    pub ticks: Vec<Tick>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    pub at: f64,
    pub text: String,
    /// Left out where there is little room.
    pub minor: bool,
}

impl Axis {
    /// From 0 to a round number that is at least `most`.
    pub fn from_zero(most: f64, text: fn(f64) -> String) -> Axis {
        let step = step(most, 5);
        let count = (most / step * 0.999_999).ceil().max(1.0);
        let ticks = (0..=count as u32).map(|n| f64::from(n) * step);
        Axis {
            low: 0.0,
            high: count * step,
            logarithmic: false,
            ticks: ticks.map(|at| tick(at, text)).collect(),
        }
    }

    /// From one power of ten to another; where few of them are needed, from and to twice or five times one.
    pub fn logarithmic(least: f64, most: f64, text: fn(f64) -> String) -> Axis {
        let fine: Vec<f64> = (-6..=9)
            .flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(power)))
            .collect();
        let powers: Vec<f64> = (-6..=9).map(|power| 10f64.powi(power)).collect();
        let around = |all: &[f64]| {
            let first = all.iter().rposition(|one| *one <= least * 1.000_001);
            let last = all.iter().position(|one| *one >= most * 0.999_999);
            let (first, last) = (first.unwrap_or(0), last.unwrap_or(all.len() - 1));
            all[first..=last.max(first + 1).min(all.len() - 1)].to_vec()
        };
        let mut values = around(&fine);
        if values.len() > LABELS_Y {
            values = around(&powers);
        }
        Axis {
            low: values[0],
            high: values[values.len() - 1],
            logarithmic: true,
            ticks: values.into_iter().map(|at| tick(at, text)).collect(),
        }
    }

    /// From the first to the last value of a run, with round numbers between them.
    pub fn between(low: f64, high: f64, text: fn(f64) -> String) -> Axis {
        let high = if high > low { high } else { low + 1.0 };
        let step = step(high - low, LABELS_X);
        let first = (low / step).ceil() as i64;
        let last = (high / step + 1e-9).floor() as i64;
        let ticks = (first..=last).enumerate();
        let ticks = ticks.map(|(place, n)| Tick {
            minor: place % 2 == 1,
            ..tick(n as f64 * step, text)
        });
        Axis {
            low,
            high,
            logarithmic: false,
            ticks: ticks.collect(),
        }
    }

    /// With ticks that are chosen by hand.
    pub fn with_ticks(low: f64, high: f64, ticks: Vec<Tick>) -> Axis {
        Axis {
            low,
            high,
            logarithmic: false,
            ticks,
        }
    }

    pub fn is_logarithmic(&self) -> bool {
        self.logarithmic
    }

    /// What lies outside is drawn at the edge.
    fn place(&self, value: f64) -> f64 {
        let place = match self.logarithmic {
            true => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        place.clamp(0.0, 1.0)
    }

    fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

fn tick(at: f64, text: fn(f64) -> String) -> Tick {
    Tick {
        at,
        text: text(at),
        minor: false,
    }
}

/// A round distance, of which about `count` fit into `length`.
fn step(length: f64, count: usize) -> f64 {
    if length <= 0.0 {
        return 1.0;
    }
    let least = length / count as f64;
    let size = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let step = steps.into_iter().find(|step| step * size >= least * 0.999);
    step.unwrap_or(10.0) * size
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Line,
    Dashed,
    /// Steps, and what is below them filled.
    Area,
    /// What is above nothing as a bar from the bottom.
    Bars,
    /// A dot for each point.
    Dots,
}

pub struct Line {
    pub name: &'static str,
    /// A colour of the style sheet.
    pub colour: &'static str,
    pub style: Style,
    pub points: Vec<(f64, f64)>,
}

pub struct Chart {
    pub title: &'static str,
    /// What a person should know to read it.
    pub note: String,
    pub x: Axis,
    pub y: Axis,
    pub x_name: &'static str,
    pub y_name: &'static str,
    pub lines: Vec<Line>,
    /// Values of y that are to be kept.
    pub bounds: Vec<(f64, String)>,
    /// Values of x where something happened.
    pub marks: Vec<(f64, String)>,
    /// Words at points of the plot.
    pub notes: Vec<(f64, f64, String)>,
    /// What is said of a stretch of x when somebody points at it.
    pub explained: Vec<(f64, f64, String)>,
}

impl Chart {
    pub fn draw(&self, out: &mut String) {
        let title = self.title;
        let _ = write!(out, "<section><h2>{title}</h2>");
        if !self.note.is_empty() {
            let _ = write!(out, "<p class=note>{}</p>", self.note);
        }
        let scale = if self.y.is_logarithmic() {
            ", logarithmic"
        } else {
            ""
        };
        let _ = write!(
            out,
            "<div class=plot><span class=unit>{}{scale}</span><svg viewBox='0 0 {SIZE} {SIZE}' preserveAspectRatio=none role=img aria-label='{title}'>",
            self.y_name
        );
        self.grid(out);
        for line in &self.lines {
            self.line(out, line);
        }
        self.rules(out);
        out.push_str("</svg>");
        self.labels(out);
        out.push_str("</div>");
        self.key(out);
        out.push_str("</section>");
    }

    fn at_x(&self, value: f64) -> f64 {
        self.x.place(value) * SIZE
    }

    fn at_y(&self, value: f64) -> f64 {
        SIZE - self.y.place(value) * SIZE
    }

    fn grid(&self, out: &mut String) {
        for tick in &self.y.ticks {
            let y = self.at_y(tick.at);
            let _ = write!(
                out,
                "<line x1=0 x2={SIZE} y1={y:.1} y2={y:.1} stroke='var(--line)'/>"
            );
        }
    }

    fn line(&self, out: &mut String, line: &Line) {
        let colour = line.colour;
        let points = || {
            line.points
                .iter()
                .map(|(x, y)| (self.at_x(*x), self.at_y(*y)))
        };
        let mut path = String::new();
        match line.style {
            Style::Dots => return,
            Style::Bars => {
                for ((x, y), (_, value)) in points().zip(&line.points) {
                    if *value > 0.0 {
                        let _ = write!(path, "M{x:.1},{SIZE}V{y:.1}");
                    }
                }
            }
            Style::Line | Style::Dashed | Style::Area => {
                for (place, (x, y)) in points().enumerate() {
                    let step = if place == 0 { 'M' } else { 'L' };
                    let _ = write!(path, "{step}{x:.1},{y:.1}");
                }
            }
        }
        if line.style == Style::Area
            && let (Some((first, _)), Some((last, _))) = (points().next(), points().next_back())
        {
            let _ = write!(
                out,
                "<path class=area style='fill:var(--shade)' d='{path}L{last:.1},{SIZE}L{first:.1},{SIZE}Z'/>"
            );
        }
        let more = match line.style {
            Style::Dashed => " stroke-dasharray='5 4'",
            Style::Bars => " stroke-width='4'",
            Style::Line | Style::Area | Style::Dots => "",
        };
        let width = if more.contains("width") {
            ""
        } else {
            " stroke-width='2'"
        };
        let _ = write!(
            out,
            "<path d='{path}' stroke='var({colour})'{width} stroke-linejoin='round'{more}/>"
        );
    }

    fn rules(&self, out: &mut String) {
        for (value, _) in self.bounds.iter().filter(|(value, _)| self.y.holds(*value)) {
            let y = self.at_y(*value);
            let _ = write!(
                out,
                "<line x1=0 x2={SIZE} y1={y:.1} y2={y:.1} stroke='var(--red)' stroke-dasharray='2 3'/>"
            );
        }
        for (value, _) in &self.marks {
            let x = self.at_x(*value);
            let _ = write!(
                out,
                "<line x1={x:.1} x2={x:.1} y1=0 y2={SIZE} stroke='var(--grey)' stroke-dasharray='2 3'/>"
            );
        }
    }

    /// In percent of the plot.
    fn labels(&self, out: &mut String) {
        for tick in &self.y.ticks {
            let bottom = self.y.place(tick.at) * 100.0;
            let _ = write!(
                out,
                "<span class=y style='bottom:{bottom:.2}%'>{}</span>",
                tick.text
            );
        }
        for tick in &self.x.ticks {
            let left = self.x.place(tick.at) * 100.0;
            let minor = if tick.minor { " minor" } else { "" };
            let _ = write!(
                out,
                "<span class='x{minor}' style='left:{left:.2}%'>{}</span>",
                tick.text
            );
        }
        let _ = write!(out, "<span class=axis>{}</span>", self.x_name);
        for (value, text) in &self.bounds {
            let bottom = self.y.place(*value) * 100.0;
            let above = if self.y.holds(*value) { "" } else { " ↑" };
            let _ = write!(
                out,
                "<span class=bound style='bottom:{bottom:.2}%'>{text}{above}</span>"
            );
        }
        for (value, text) in &self.marks {
            let left = self.x.place(*value) * 100.0;
            let _ = write!(
                out,
                "<span class=mark style='left:{left:.2}%'>{text}</span>"
            );
        }
        for (x, y, text) in &self.notes {
            let (left, bottom) = (self.x.place(*x) * 100.0, self.y.place(*y) * 100.0);
            let _ = write!(
                out,
                "<span class=at style='right:{:.2}%;bottom:{bottom:.2}%'>{text}</span>",
                100.0 - left
            );
        }
        let dots = self.lines.iter().filter(|line| line.style == Style::Dots);
        for line in dots {
            for (x, y) in &line.points {
                let _ = write!(
                    out,
                    "<span class=dot style='left:{:.2}%;bottom:{:.2}%;background:var({})'></span>",
                    self.x.place(*x) * 100.0,
                    self.y.place(*y) * 100.0,
                    line.colour
                );
            }
        }
        if self.explained.len() <= EXPLAINED_MAX {
            for (from, to, text) in &self.explained {
                let left = self.x.place(*from) * 100.0;
                let width = self.x.place(*to) * 100.0 - left;
                let _ = write!(
                    out,
                    "<span class=hit title='{text}' style='left:{left:.2}%;width:{width:.2}%'></span>"
                );
            }
        }
    }

    fn key(&self, out: &mut String) {
        out.push_str("<p class=key>");
        for line in &self.lines {
            let (class, style) = match line.style {
                Style::Dashed => (" class=dashed", "border-color"),
                Style::Bars => (" class=box", "background"),
                Style::Dots => (" class=box", "background"),
                Style::Line | Style::Area => ("", "border-color"),
            };
            let _ = write!(
                out,
                "<span><i{class} style='{style}:var({})'></i>{}</span>",
                line.colour, line.name
            );
        }
        out.push_str("</p>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|tick| tick.text.as_str()).collect()
    }

    #[test]
    fn axes_have_round_numbers() {
        let plain = |value: f64| format!("{value}");
        assert_eq!(
            texts(&Axis::from_zero(9.3, plain)),
            ["0", "2", "4", "6", "8", "10"]
        );
        assert_eq!(
            texts(&Axis::from_zero(1_000.0, plain)).last(),
            Some(&"1000")
        );
        assert_eq!(texts(&Axis::from_zero(0.0, plain)), ["0", "1"]);
        let logarithmic = Axis::logarithmic(0.3, 8.0, plain);
        assert_eq!(texts(&logarithmic), ["0.2", "0.5", "1", "2", "5", "10"]);
        let wide = Axis::logarithmic(0.3, 1_100.0, plain);
        assert_eq!(texts(&wide), ["0.1", "1", "10", "100", "1000", "10000"]);
        let seconds = Axis::between(0.0, 33.0, plain);
        assert_eq!(texts(&seconds), ["0", "5", "10", "15", "20", "25", "30"]);
        assert!(seconds.ticks[1].minor && !seconds.ticks[2].minor);
    }

    #[test]
    fn values_stand_where_they_belong() {
        let axis = Axis::logarithmic(1.0, 100.0, |value| format!("{value}"));
        assert!((axis.place(10.0) - 0.5).abs() < 1e-9);
        assert_eq!(
            (axis.place(0.0), axis.place(1e6)),
            (0.0, 1.0),
            "at the edge"
        );
        let axis = Axis::from_zero(10.0, |value| format!("{value}"));
        assert_eq!(axis.place(2.5), 0.25);
    }
}
