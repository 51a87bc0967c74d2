"""Held-out sentences: never used for training.

TEST and DEV: 20 hand-written lines, 12 unseen WordNet examples and 8 sentences from templates that
training never sees, each. DEV alone chooses settings. MORE: 140 and 60 of the latter two kinds, drawn
once by a fixed seed and not edited afterwards.
"""

# ruff: noqa: E501 (a sentence is one line)

TEST = """\
The quick brown fox jumps over the lazy dog.
I moved your dentist appointment to next Thursday morning.
Would you like me to read the rest of the message?
Please hold the line while I find someone who can help you.
There are three parking spaces left on the upper level.
The bakery on the corner sells the best rye bread in town.
My grandmother grows tomatoes on her balcony every summer.
Your battery is low, so I have switched off the lights in the garage.
How long does it take to boil an egg?
We could not verify your identity with the answers you gave.
It started to rain just as we left the house.
The children built a tunnel out of cardboard boxes.
Can I bring you anything from the kitchen?
Nobody expected the old bridge to survive the flood.
She plays the cello in a small orchestra on weekends.
The update will install tonight while you are asleep.
That joke was funnier the first time you told it.
He whispered the answer, but everybody heard him.
Good afternoon, and thank you for calling the service desk.
Yes, I can do that for you.
The idea was immediate but the verbalism took hours.
Not the most salubrious campsite.
A place of potency in the state.
Check whether the train leaves on time.
Trousers with tapered legs.
Effective teaching methods.
The harsh white light makes you screw up your eyes.
An ex-directory number.
Cried aloud for help.
A row of sparkly cheerleaders.
The door unlocked from the inside.
Primal eras before the appearance of life on earth.
Could you please tell Valerie that the battery will be ready by 9:30 a.m.?
The supermarket near Washington Boulevard has been closed since 1770.
I booked a table for 2 at 1:05 a.m. under the name Elena Taylor.
My sister wrapped an ancient ticket while she was living in Miami.
Between 27 and 358 visitors came to the post office on Thursday.
Remember to take your guitar with you, David.
The recipe needs oranges, scrambled eggs, and a lot of patience.
A storm is moving toward Virginia, so Monday will be snowy.
""".splitlines()

DEV = """\
Your taxi is waiting outside the front entrance.
I am sorry, but that song is not in your library.
The second half of the film was much better than the first.
Should I switch the heating on before you come home?
A thick layer of snow covered the roof of the barn.
You can cancel the order until it leaves the warehouse.
What would you like to drink with your meal?
The library will be closed for repairs until the end of the month.
Two hikers were rescued from the north face of the mountain.
I will send you a link to reset your password.
The teacher asked us to write a short poem about autumn.
Let me know when you are ready to continue.
This jacket is too warm for a day like today.
My brother forgot his keys again, so he had to climb through the window.
Do you remember where we parked the car?
The museum shows paintings from the seventeenth century.
Nothing in this room belongs to me.
Sure, one moment please.
The engine makes a strange noise whenever it gets cold.
No, thank you, I have already eaten.
Cross-section views of the neck.
Crop rotation makes a balanced demand on the fertility of the soil.
There was an interchange of prisoners.
Stared with mournful eyes.
Of incalculable value.
Load the bags onto the trucks.
They underlaid the shingles with roofing paper.
Foreseeable costs were well within the budget.
He loved to solve chessmate puzzles.
His bag included two deer.
We settled the problem conclusively.
The thief made off with our silver.
Our psychologist can call you back on Thursday at 9:05 this evening.
That will be $109.71 for the permanent blanket and the chocolate cake.
After the gas station, make a left turn and continue for 3 kilometers.
I read an ancient article about the translation yesterday.
Let's talk about the project after lunch.
The rhinoceros looked nervous, so the pilot gave it some ginger tea.
Dr. Schmidt, your car is parked in front of the train station.
Could you please tell Laura that the newspaper will be ready by 7:15 p.m.?
""".splitlines()

MORE = """\
Lard was also used, though its congener, butter, was more frequently employed.
The appointment had to be approved by the whole committee.
He jumped into the drink and had to be rescued.
The sweet science of pugilism.
She didn't think to harm me.
Church bells were ringing all over town.
She started to speak but he gave her the high sign.
The strength of the company's stock in recent weeks.
In spite of the heat he insisted on his woolen costume.
His stomach bulged after the huge meal.
The bicameral heart of a fish.
The worn pockets on the jacket.
Producing wheat under extensive conditions.
A newspaper with a modest circulation.
He transformed into a monster.
The ship travelled unswervingly through the night.
He checked the point on his compass.
The people deified their King.
A box of loose nails.
He always arrives on the eve of her departure.
He made a mental note to send her flowers.
He answered her cantankerously.
She longed for the comfortableness of her armchair.
Drawings of abstract forms.
He gave the first of many toasts at the birthday party.
He played best after a couple of martinis.
The merchandise was unrequested.
An unalterable ground rule.
Either too unsophisticated or too honest to promise more than he could deliver.
Their quarterback was a good scrambler.
As sober as a judge.
She is impeding the progress of our project.
An affectionate and demonstrative family.
A blade of lint on his suit.
She ached for a cigarette.
The windshield misted over.
I won't buy damaged goods.
He used a spinner as his troll.
The paint will brighten the room.
We are generaled by an incompetent!
John was ruled out as a possible suspect because he had a strong alibi.
Their behavior was juvenile.
It places great tension on the leg muscles.
You look simply smashing.
An empty chaffy book by a foolish chaffy fellow.
The lights were flashing.
A hand-to-mouth existence.
Bought some made goods at the local store; rope and nails.
What a nice fellow you are and we all thought you so nasty.
This South African surgeon pioneered heart transplants.
A frenzied look in his eye.
He got his squad on the ball.
Prepared to take risks.
Beat the table with his shoe.
He joined a golf club.
A poor light for reading.
A thoughtless and unkind remark.
There will be a wealth of information on hand from the lawyers.
He ate and drank abstemiously.
He was charged with rolling drunks in the park.
Tell me what you think, and you may just as well be frank.
Palpitant movements rather than violent eruptions.
They are expecting a large vote.
Redeemable stocks and bonds.
Few women have led troops in battle.
Were you hurting after the accident?
A policy that is destructive to the economy.
She is harboring a grudge against him.
The azygous muscle of the uvula.
The river was foaming.
They were on the spot when it happened.
The soldiers marched across the border.
They were arranged singly.
The men were sitting in the cafe and shooting the breeze.
Propagate sound or light through air.
A classless society.
Invoke God in times of trouble.
The fey quality was there, the ability to see the moon at midday.
Her face showed nothing but stolid indifference.
A life of luxury and ease.
Roused him from his kip.
The closing weeks of the year.
Made the children feel welcome.
The release of iodine from the thyroid gland.
A future-day Gibbon of Macaulay.
The plane made a smooth landing.
Disposable paper cups.
He went into hiding.
People were rushing about.
He was fatally ill equipped for the climb.
The cigar smoke curled up at the ceiling.
It is paradoxical that standing is more tiring than walking.
The woman kept house while the man hunted.
These temples were mindlessly destroyed by the Red Guards.
We adjourned for lunch.
The drug produces an increased synchrony of the brain waves.
Dam the gorges of the Yangtse River.
She bore herself loftily.
The landlord persists in asking us to move.
Toll the bridges into New York City.
Bites of black flies are more than irritating; they can be very painful.
Got his way by labyrinthine maneuvering.
An ultraconservative evangelical message.
Hell hath no fury like a woman scorned.
Non-paying bidders on eBay.
An unequivocal success.
The witness was cross-examined by the defense.
He was fifth out of several hundred runners.
Don't always pick on your little brother.
The soldiers moved towards the city in an attempt to take it before night fell.
Dogs should be kept under restraint.
Elections figure prominently in every government program.
The practice may go back still farther to the Druids.
He represented the craft of brewers.
My arthritis is acting up again.
Brush away the crumbs.
A bomb scare led them to evacuate the building.
Spent a considerable amount of time on the problem.
The lake shallowed over time.
Stems with alternate leaves.
The aesthetic faculties.
What do you get when you add up these numbers?
His head was severed from his body.
A blueprint for a house.
Don't belittle your colleagues.
Stay off the premises.
A polymeric compound.
She acts prudishly, but I wonder whether she is really all that chaste.
His music is characterized by a happy athleticism.
Certain highly specialized xerophytes are extremely exacting in their requirements.
This vowel is usually elided before a single consonant.
The informed customer.
Measures for the control of disease.
He skimcoated the drywall.
Scratch that remark.
The woolly aphid has a lanate coat resembling cotton.
His financial success encouraged him to look for a wife.
An indeterminate point of law.
The hollow sound of footsteps in the empty ballroom.
A house with a good foundation underneath.
The coffee shop near Washington Boulevard has been closed since 1761.
I booked a table for 4 at 8:15 this evening under the name Carla Robinson.
My sister bought a reasonable envelope while she was living in Houston.
Between 77 and 700 visitors came to the pharmacy on Saturday.
Remember to take your envelope with you, Mr. Baker.
The recipe needs tacos, salmon, and a lot of patience.
A storm is moving toward Sweden, so Thursday will be cloudy.
Our dentist can call you back on Tuesday at 5:30 this evening.
That will be 81 cents for the warm mirror and the mushrooms.
After the bank, make a left turn and continue for 10 blocks.
I read a simple article about classical music yesterday.
Let's talk about the election after lunch.
The dog looked reasonable, so the plumber gave it some broccoli.
Mrs. Whitaker, your car is parked in front of the city hall.
Could you please tell Oscar that the mitten will be ready by 7:40 this evening?
The church near Queen Street has been closed since 1867.
I booked a table for 10 at 6:15 under the name Nadia Bennett.
My sister sold a smooth ladder while she was living in Casablanca.
Between 40 and 101 visitors came to the hotel on Saturday.
Remember to take your ticket with you, Dr. Nguyen.
The recipe needs bread, avocado, and a lot of patience.
A storm is moving toward Alaska, so Wednesday will be mild.
Our veterinarian can call you back on Thursday at 5:10.
That will be $33.88 for the reasonable necklace and the pancakes.
After the school, make a right turn and continue for 12 feet.
I read a modern article about  machine learning yesterday.
Let's talk about the warranty after lunch.
The elephant looked wonderful, so the scientist gave it some onions.
Elena, your car is parked in front of the restaurant.
Could you please tell Zachary that the toaster will be ready by 3:00 a.m.?
The hospital near Highland Avenue has been closed since 1796.
I booked a table for 3 at 12:25 this evening under the name Thomas Peterson.
My sister admired an ordinary camera while she was living in Glasgow.
Between 88 and 989 visitors came to the bank on Wednesday.
Remember to take your laptop with you, Ms. Zimmerman.
The recipe needs noodles, spinach, and a lot of patience.
A storm is moving toward Canada, so Sunday will be rainy.
Our doctor can call you back on Monday at 3:15 this evening.
That will be $38.23 for the safe puzzle and the soup.
After the swimming pool, make a right turn and continue for 6 meters.
I read a hungry article about volcanoes yesterday.
Let's talk about your appointment after lunch.
The sheep looked useful, so the librarian gave it some avocado.
Grace, your car is parked in front of the hospital.
Could you please tell Chloe that the bicycle will be ready by 2 o'clock?
The church near Main Street has been closed since 1973.
I booked a table for 6 at 7:15 a.m. under the name Roland Young.
My sister painted a brilliant charger while she was living in Cairo.
Between 96 and 646 visitors came to the museum on Saturday.
Remember to take your compass with you, Ms. Robinson.
The recipe needs onions, hot chocolate, and a lot of patience.
A storm is moving toward Louisiana, so Thursday will be dry.
Our plumber can call you back on Friday at 4:45.
That will be $177.03 for the cold screwdriver and the tacos.
After the stadium, make a left turn and continue for 9 minutes by car.
I read a reasonable article about the human heart yesterday.
Let's talk about the history of Rome after lunch.
The cat looked fragile, so the farmer gave it some curry.
Kenji, your car is parked in front of the library.
Could you please tell Mrs. Ellison that the painting will be ready by 8 p.m.?
""".splitlines()


def all_texts() -> set[str]:
    """Return every held-out sentence."""
    return {*TEST, *DEV, *MORE}
