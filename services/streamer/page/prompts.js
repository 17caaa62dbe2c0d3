// Prompts to begin with: what speculation is good at, and what it isn't.

const CODE = `def total(orders):
    result = 0
    for order in orders:
        if order.paid:
            result += order.amount
    return result


def average(orders):
    count = 0
    for order in orders:
        if order.paid:
            count += 1
    return total(orders) / count


def largest(orders):
    result = 0
    for order in orders:
        if order.paid and order.amount > result:
            result = order.amount
    return result`;

const LETTER = `The ferry leaves the north harbour at seven every morning except on Sundays. It carries forty passengers, \
two cars and the post. The crossing takes fifty minutes in calm weather. In winter the ferry waits for the ice breaker, \
and the crossing may take three hours. Tickets are sold on board.`;

export const PROMPTS = [
  { name: "Code, repeated", chat: true, text: `Repeat this code exactly, and nothing else:\n\n${CODE}` },
  { name: "Quote a text", chat: true, text: `${LETTER}\n\nQuote the text above word by word.` },
  { name: "A table in JSON", chat: true,
    text: "Write a JSON list of twelve months, each with the fields name, number, days and season." },
  { name: "Open chat", chat: true, text: "What makes a good harbour town? Answer in a few sentences." },
  { name: "Go on counting", chat: false, text: "one two three four five six seven, one two three four" },
];
