"""The project that the agent works on: a small shop in Python, written for this. Texts by path."""

from __future__ import annotations

NAME = "tidepool"
FILES = {
    f"{NAME}/prices.py": '''\
"""Prices in cents."""

TAX = 19
FREE_SHIPPING = 5000


def with_tax(cents):
    return cents + cents * TAX // 100


def shipping(cents):
    if cents >= FREE_SHIPPING:
        return 0
    return 490


def total(items):
    value = 0
    for item in items:
        value = value + item.price * item.count
    return value + shipping(value)
''',
    f"{NAME}/basket.py": '''\
"""What a customer is about to buy."""

MOST_ITEMS = 40


class Basket:
    def __init__(self, customer):
        self.customer = customer
        self.items = []

    def add(self, item):
        if len(self.items) >= MOST_ITEMS:
            raise ValueError("the basket is full")
        self.items.append(item)

    def remove(self, name):
        self.items = [item for item in self.items if item.name != name]

    def count(self):
        return sum(item.count for item in self.items)
''',
    f"{NAME}/stock.py": '''\
"""How many of each article lie in the store."""

LOW = 5


class Stock:
    def __init__(self):
        self.counts = {}

    def put(self, name, count):
        self.counts[name] = self.counts.get(name, 0) + count

    def take(self, name, count):
        if self.counts.get(name, 0) < count:
            raise KeyError(name)
        self.counts[name] = self.counts[name] - count

    def low(self):
        return [name for name, count in self.counts.items() if count < LOW]
''',
    f"{NAME}/mail.py": '''\
"""Letters to customers."""

SENDER = "shop@example.org"


def order_letter(name, number):
    lines = ["Dear " + name + ",", "thank you for order " + str(number) + "."]
    lines.append("It leaves our store today.")
    return "\\n".join(lines)


def reminder(name, days):
    lines = ["Dear " + name + ",", "your bill is " + str(days) + " days old."]
    lines.append("Please pay it soon.")
    return "\\n".join(lines)
''',
    f"{NAME}/orders.py": '''\
"""Orders and their states."""

OPEN = "open"
PAID = "paid"
SENT = "sent"


def pay(order):
    if order.state != OPEN:
        raise ValueError("this order is not open")
    order.state = PAID
    return order


def send(order, stock):
    if order.state != PAID:
        raise ValueError("this order is not paid")
    for item in order.items:
        stock.take(item.name, item.count)
    order.state = SENT
    return order
''',
    f"{NAME}/report.py": '''\
"""Figures of a month."""

MONTHS = 12


def revenue(orders):
    return sum(order.total for order in orders if order.state == "sent")


def average(orders):
    sent = [order for order in orders if order.state == "sent"]
    if not sent:
        return 0
    return revenue(sent) // len(sent)


def best_customer(orders):
    totals = {}
    for order in orders:
        totals[order.customer] = totals.get(order.customer, 0) + order.total
    return max(totals, key=totals.get)
''',
    f"{NAME}/customers.py": '''\
"""Customers by their numbers."""

FIRST_NUMBER = 1000


class Customers:
    def __init__(self):
        self.by_number = {}

    def add(self, name, town):
        number = FIRST_NUMBER + len(self.by_number)
        self.by_number[number] = {"name": name, "town": town}
        return number

    def find(self, name):
        return [number for number, each in self.by_number.items() if each["name"] == name]

    def towns(self):
        return sorted({each["town"] for each in self.by_number.values()})
''',
    f"{NAME}/discounts.py": '''\
"""Rebates for large orders."""

STEPS = [(10000, 3), (25000, 5), (50000, 8)]


def percent(cents):
    found = 0
    for least, rebate in STEPS:
        if cents >= least:
            found = rebate
    return found


def reduced(cents):
    return cents - cents * percent(cents) // 100
''',
}
