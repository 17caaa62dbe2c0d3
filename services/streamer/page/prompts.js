// Prompts to begin with: what speculation is good at, and what it isn't.

const LETTER = `The ferry leaves the north harbour at seven every morning except on Sundays. It carries forty passengers, \
two cars and the post. The crossing takes fifty minutes in calm weather. In winter the ferry waits for the ice breaker, \
and the crossing may take three hours. Tickets are sold on board.`;

const LOG = Array.from({ length: 6 }, (_, day) =>
  `2026-03-0${day + 1} 08:00:00 INFO harbour: ferry ${day + 1} left on time with ${31 + day} passengers\n`).join("");

export const PROMPTS = [
  { name: "Go on with a log", chat: false, text: LOG },
  { name: "A times table", chat: true,
    text: "Write the multiplication table of 7 up to 7 x 30, one line each, like: 7 x 1 = 7" },
  { name: "Quote a text", chat: true, text: `${LETTER}\n\nQuote the text above word by word.` },
  { name: "Days in JSON", chat: true,
    text: "Write a JSON list of the days of the week, each with the fields name, number and weekend." },
  { name: "Tell a story", chat: true, text: "Tell a long story about a lighthouse keeper." },
];
