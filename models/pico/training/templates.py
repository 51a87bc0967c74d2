"""Template sentences of the kind that a voice agent says; written for this project."""

import random
import re
from collections.abc import Callable

from models.pico.training import words as w

_SLOT = re.compile(r"\{(\w+)\}")

Filler = Callable[[random.Random], str]


def _from(options: list[str]) -> Filler:
    return lambda rng: rng.choice(options)


def _number(low: int, high: int) -> Filler:
    return lambda rng: str(rng.randint(low, high))


def _money(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        return f"{rng.randint(1, 200)} dollars and {rng.randint(1, 99)} cents"
    if kind < 0.5:
        return f"{rng.randint(1, 20)} dollars {rng.randint(10, 99)}"
    return f"{rng.randint(2, 999)} {rng.choice(['euros', 'pounds', 'dollars', 'dollars', 'cents'])}"


def _clock(rng: random.Random) -> str:
    hour, minute = rng.randint(1, 12), rng.choice([0, 0, 5, 10, 15, 20, 25, 30, 30, 40, 45, 50])
    if minute == 0:
        return rng.choice([f"{hour} o'clock", f"{hour} a m", f"{hour} p m", "noon", "midnight"])
    spoken = f"{hour} oh {minute}" if minute < 10 else f"{hour} {minute}"
    if minute == 30 and rng.random() < 0.3:
        spoken = f"half past {hour}"
    return spoken + rng.choice(["", " a m", " p m", " this evening"])


def _year(rng: random.Random) -> str:
    century, rest = rng.choice([17, 18, 19, 19, 19, 20]), rng.randint(1, 99)
    if century == 20 and rest < 10:
        return f"two thousand {rest}"
    return f"{century} oh {rest}" if rest < 10 else f"{century} {rest}"


def _date(rng: random.Random) -> str:
    month, day = rng.choice(w.MONTHS), rng.choice(w.ORDINALS)
    form = rng.randint(0, 3)
    if form == 0:
        return f"{month} {day}"
    if form == 1:
        return f"{rng.choice(w.DAYS)}, {month} {day}"
    if form == 2:
        return f"{month} {day}, {_year(rng)}"
    return f"the {day} of {month}"


def _phone(rng: random.Random) -> str:
    digits = [rng.choice("0123456789") for _ in range(10)]
    return ", ".join(" ".join(part) for part in (digits[:3], digits[3:6], digits[6:]))


def _code(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return " ".join(str(rng.randint(0, 9)) for _ in range(rng.randint(3, 6)))
    return ", ".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(rng.randint(2, 4)))


def _spelled(rng: random.Random) -> str:
    return ", ".join(rng.choice(w.FIRST_NAMES + w.LAST_NAMES).upper().replace("'", ""))


def _decimal(rng: random.Random) -> str:
    return f"{rng.randint(0, 99)} point {rng.randint(1, 9)}"


def _person(rng: random.Random) -> str:
    if rng.random() < 0.3:
        return f"{rng.choice(['Mr.', 'Mrs.', 'Dr.', 'Ms.'])} {rng.choice(w.LAST_NAMES)}"
    return rng.choice(w.FIRST_NAMES)


def _full_name(rng: random.Random) -> str:
    return f"{rng.choice(w.FIRST_NAMES)} {rng.choice(w.LAST_NAMES)}"


FILLERS: dict[str, Filler] = {
    "name": _person,
    "full": _full_name,
    "place": _from(w.PLACES),
    "region": _from(w.REGIONS),
    "day": _from(w.DAYS),
    "month": _from(w.MONTHS),
    "thing": _from(w.THINGS),
    "thing2": _from(w.THINGS),
    "food": _from(w.FOODS),
    "food2": _from(w.FOODS),
    "topic": _from(w.TOPICS),
    "topic2": _from(w.TOPICS),
    "adj": _from(w.ADJECTIVES),
    "adj2": _from(w.ADJECTIVES),
    "animal": _from(w.ANIMALS),
    "job": _from(w.JOBS),
    "street": _from(w.STREETS),
    "building": _from(w.BUILDINGS),
    "building2": _from(w.BUILDINGS),
    "weather": _from(w.WEATHER),
    "past": _from(w.VERBS_PAST),
    "small": _number(2, 12),
    "n": _number(2, 99),
    "hundreds": _number(100, 999),
    "big": lambda rng: f"{rng.randint(1000, 999999):,}",
    "year": _year,
    "percent": lambda rng: f"{rng.randint(1, 100)} percent",
    "decimal": _decimal,
    "money": _money,
    "time": _clock,
    "time2": _clock,
    "date": _date,
    "phone": _phone,
    "code": _code,
    "spelled": _spelled,
    "side": _from(["left", "right"]),
    "ordinal": _from(["first", "second", "third", "fourth", "fifth", "sixth", "tenth", "last"]),
    "unit": _from(["kilometers", "miles", "meters", "feet", "blocks", "minutes by car", "yards"]),
    "degrees": _number(-9, 39),
    "digit": _number(0, 9),
}

TEMPLATES = """Sure, I can help you with {topic}.
Let me look up {topic} for you.
I found {small} results about {topic}.
I'm sorry, I could not find anything about {topic}.
Could you say that again, please? I did not catch the part about {topic}.
I'm afraid I don't have any information about {topic} or {topic2}.
Would you like to hear more about {topic}?
Here is what I know about {topic}.
Okay, {name}, I have changed {topic}.
Do you want me to call {name} at {phone}?
Your appointment with {name} is on {date} at {time}.
You have {small} meetings on {day}, and the first one starts at {time}.
I have moved your meeting with {name} from {time} to {time2}.
Should I remind you about {topic} on {day}?
I set a timer for {n} minutes.
Your alarm is set for {time}.
It is {time} in {place}.
Today is {day}, {month} {small}.
The meeting on {date} was cancelled by {full}.
The next train to {place} leaves at {time} from platform {small}.
The flight from {place} to {place} takes about {small} hours.
Your flight to {place} has been delayed until {time}.
Flight {code} to {place} is now boarding at gate {n}.
There is a direct bus from {place} to the {building} every {n} minutes.
The ticket costs {money}.
The total comes to {money}, including tax.
Your balance is {money}, and your next payment is due on {date}.
We refunded {money} to your card on {day}.
That {thing} is on sale for {money}.
A {adj} {thing} like that usually costs between {money} and {money}.
Your order number is {code}.
Your confirmation code is {code}. I repeat: {code}.
The number is {phone}.
You can reach {full} at {phone} after {time}.
Please call us back at {phone}, extension {n}.
My name is {full}, and I will be your assistant today.
Hello, {name}, how can I help you?
Good morning, {name}. Did you sleep well?
Hi {name}, thanks for calling. What can I do for you?
Thank you for waiting, {name}.
Nice to meet you, {name}.
Goodbye, {name}, and have a {adj} day.
Is this {full} speaking?
May I speak to {name}, please?
{name} is not here right now. Would you like to leave a message?
{full} wants to talk to you about {topic}.
{full} works as a {job} in {place}.
{name} was born in {place} in {year}.
{name} and {name} {past} the {adj} {thing} in {month}.
The {job} {past} a {thing} near the {building}.
Why did {name} {adj} the {thing}?
Who {past} the {adj} {thing}?
Have you seen the {adj} {animal} behind the {building}?
The {adj} {animal} slept under the {thing}.
A {adj} {animal} and a {adj2} {animal} crossed {street}.
I once met a {job} who kept a {animal} in {place}.
What a {adj} {animal}!
How {adj} is the {thing}?
Is the {thing} {adj} or {adj2}?
The {thing} is {adj}, but the {thing2} is {adj2}.
The {adj}, {adj2} {thing} belongs to {name}.
Neither the {thing} nor the {thing2} was {adj}.
Where can I buy a {thing} in {place}?
Can you bring the {thing} and the {thing2}?
Please put the {thing} next to the {thing2}.
If the {thing} is too {adj}, try the {thing2} instead.
When the {job} arrived, the {thing} was gone.
She said that the {thing} was {adj}, didn't she?
He {past} his {thing} on the way to the {building}.
They {past} {n} {food} recipes in {year}.
It will be {weather} in {place} on {day}.
The weather in {place} is {weather}, with {degrees} degrees.
Tomorrow will be {weather}, with a high of {n} degrees and a low of {digit}.
Expect {weather} conditions in {region} until {day} evening.
There is a {percent} chance of rain in {place}.
Winds will reach {n} miles per hour by {time}.
Take an umbrella, because {place} will be {weather} at {time}.
The temperature rose to {decimal} degrees in {month}.
To get to the {building}, turn {side} on {street}.
Go straight for {n} meters, then turn {side} at the {building}.
Take the {ordinal} exit and keep {side}.
The {building} is on {street}, next to the {building2}.
Walk past the {building}, cross {street}, and you will see the {building2} on your {side}.
It is {decimal} {unit} from the {building} to the {building2}.
In {hundreds} {unit}, turn {side} onto {street}.
You have arrived at {n} {street}.
My address is {n} {street}, {place}.
The {building} opens at {time} and closes at {time2}.
Is the {building} in {place} open on {day}?
For {topic}, press {digit}. For {topic2}, press {digit}.
To speak with a {job}, press {digit} or stay on the line.
Press {digit} to repeat this menu.
Please enter your {small} digit code, followed by the pound key.
All of our agents are busy. Your waiting time is about {n} minutes.
You are number {small} in the queue.
Say yes to confirm, or no to cancel.
This call may be recorded to improve {topic}.
You need {n} grams of {food} and a cup of {food2}.
Mix the {food} with the {food2}, and bake for {n} minutes.
Would you like {food} or {food2} with that?
I would like {small} portions of {food}, please.
First the {food}, then the {food2}, and finally a little {food}.
The {adj} restaurant on {street} serves {food} and {food2}.
Do you have {food} without {food2}?
I bought {food}, {food2}, and a {thing}.
We are out of {food}, {name}.
{food}, {food2}, {thing}, and {thing2}.
One {thing}, two {thing2}s, and {small} tickets to {place}.
{region}, {region}, {region}, and {region}.
{day}, {day}, or {day}?
Red, green, blue, and a {adj} yellow.
The population of {region} grew by {percent} in {year}.
In {year}, about {big} people lived in {place}.
The distance is {big} kilometers.
The answer is {big}.
{n} plus {n} is {hundreds}.
{n} times {small} equals {hundreds}.
{decimal} percent of {big} is about {hundreds}.
The value fell from {decimal} to {decimal}.
Chapter {n}, page {hundreds}.
Version {decimal} was released in {month} {year}.
The score was {n} to {n}.
Room {hundreds} is on the {ordinal} floor.
That is the {ordinal} time you {past} the {thing}.
In {year}, {full} {past} a {thing} in {region}.
The war ended in {year}, and {region} became {adj}.
{full} wrote {n} books about {topic}.
Have you ever been to {region}?
The capital of that country is not {place}, it is {place}.
People in {region} often eat {food} with {food2}.
It takes {n} hours to travel from {region} to {region}.
{place} is a {adj} city in the north of {region}.
What do you think about {topic}?
Do you know anything about {topic}?
How does {topic} work?
Can you explain {topic} in {small} sentences?
Why is {topic} so {adj}?
What is the difference between {topic} and {topic2}?
Tell me a {adj} story about a {animal} and a {job}.
Once upon a time, a {adj} {animal} lived in {region}.
I think {topic} is {adj}; {topic2} is {adj2}.
That's a {adj} question: let me think about it.
I'm glad you asked about {topic}!
Oh no, the {thing} is {adj}!
Wow, that {animal} is really {adj}!
Hmm, I am not sure whether {topic} is {adj}.
Well, that sounds {adj} to me.
Honestly, I would choose the {adj} {thing}.
You're right, {name}, it was {adj} of me.
Don't worry, {name}, everything will be fine.
I can't open the {thing}, and I don't know why.
We shouldn't have {past} the {thing}, should we?
It's {adj}, isn't it?
I've already {past} the {thing}, so you'll have to wait.
They're going to {place} on {day}, aren't they?
What time does the {building} close?
What time is it in {place}?
How far is it to {place}?
How much is {money} in dollars?
How many {animal}s live in {region}?
Who is {full}?
When was {full} born?
Where is the nearest {building}?
Which {thing} is {adj}, the {ordinal} or the {ordinal} one?
How do you spell {full}?
{name} is spelled {spelled}.
The password is {code}, all lower case.
Send an email to {name} about {topic}.
Your message to {name} has been sent.
I've added {food} and {food2} to your shopping list.
I removed the {ordinal} item from your list.
Playing the {ordinal} song by {full}.
Turning off the {thing} in the kitchen.
The {thing} is at {percent} battery.
Download finished: {hundreds} files, {decimal} gigabytes.
The size is {n} by {n} centimeters.
It weighs {decimal} kilograms, or about {n} pounds.
The {building} is {n} years old.
Only {small} of the {n} {job}s agreed.
A {job}, a {job}, and a {adj} {animal} walk into a {building}.
If {name} calls before {time}, tell him that {name} is in {place}.
Although it was {weather}, {name} walked from the {building} to the {building2}.
Because the {building} was closed, we went to {place} by train, and came back at {time}.
Your package from {place} will arrive on {day} between {time} and {time2}.
Your {thing} has been shipped and should arrive by {date}.
Unfortunately, the {thing} is out of stock until {month}.
Please return the {thing} within {n} days.
You can pay in {small} installments of {money}.
I'll transfer you to our {job} now. Please hold the line.
No, that is not correct. The right answer is {n}.
Yes, {name}, on {day}.
At {time}, please.
About {n} minutes.
{money}, please.
On {date}.
In {place}.
The {adj} one.
From {place} to {place}.
A {thing}?
Not {food}, {food2}.
{day} at {time}.
{full}, please.
{n} or {n}?
Thanks, {name}.
Sorry, {name}.
Hello, {name}!""".splitlines()

# Used for held-out sentences only, never for training. Their money, times and dates are written in
# figures there, so that the text front is tested too.
HELD_OUT_TEMPLATES = """Could you please tell {name} that the {thing} will be ready by {time}?
The {building} near {street} has been closed since {year}.
I booked a table for {small} at {time} under the name {full}.
My sister {past} a {adj} {thing} while she was living in {place}.
Between {n} and {hundreds} visitors came to the {building} on {day}.
Remember to take your {thing} with you, {name}.
The recipe needs {food}, {food2}, and a lot of patience.
A storm is moving toward {region}, so {day} will be {weather}.
Our {job} can call you back on {day} at {time}.
That will be {money} for the {adj} {thing} and the {food}.
After the {building}, make a {side} turn and continue for {small} {unit}.
I read a {adj} article about {topic} yesterday.
Let's talk about {topic} after lunch.
The {animal} looked {adj}, so the {job} gave it some {food}.
{name}, your car is parked in front of the {building}.""".splitlines()


def fill(template: str, rng: random.Random) -> str:
    """Fill each slot of `template` with a random word and tidy the sentence."""
    text = _SLOT.sub(lambda match: FILLERS[match.group(1)](rng), template)
    # "a umbrella" would teach the model what no text front will ever hand it.
    text = re.sub(r"\b([Aa]) (?=[aeiouAEIOU]\w)(?!uni|use|eu|one)", r"\1n ", text)
    text = text.replace("..", ".")
    return text[0].upper() + text[1:]
