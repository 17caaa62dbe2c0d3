// Prompts to begin with: what speculation is good at, and what it isn't.

const LETTER = `The ferry leaves the north harbour at seven every morning except on Sundays. It carries forty passengers, \
two cars and the post. The crossing takes fifty minutes in calm weather. In winter the ferry waits for the ice breaker, \
and the crossing may take three hours. Tickets are sold on board.`;

const LOG = Array.from({ length: 6 }, (_, day) =>
  `2026-03-0${day + 1} 08:00:00 INFO harbour: ferry ${day + 1} left on time with ${31 + day} passengers\n`).join("");

const LIST = `Copy this list:
- Monday: tomato soup and bread with butter
- Tuesday: rice and beans
- Wednesday: fish
- Thursday: onion soup
- Friday: pasta`;

export const PROMPTS = [
  { name: "Go on with a log", chat: false, text: LOG },
  { name: "Copy a list", chat: true, text: LIST },
  { name: "Quote a text", chat: true, text: `${LETTER}\n\nQuote the text above word by word.` },
  { name: "Tell a story", chat: true, text: "Tell a long story about a lighthouse keeper." },
];
