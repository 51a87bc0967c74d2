"""Word lists that fill the template sentences; written for this project."""


def _list(text: str) -> list[str]:
    """Split at semicolons; line breaks are spaces."""
    return [" ".join(item.split()) for item in text.split(";")]


FIRST_NAMES = _list("""
Alice; Ben; Carla; David; Elena; Frank; Grace; Henry; Iris; Jack; Kate; Liam; Maria; Noah;
Olivia; Peter; Quinn; Rachel; Samuel; Teresa; Umar; Victor; Wendy; Xavier; Yusuf; Zoe; Aisha;
Bjorn; Chloe; Diego; Emma; Fatima; George; Hannah; Ivan; Julia; Kenji; Laura; Marcus; Nadia;
Oscar; Priya; Ravi; Sofia; Thomas; Ursula; Vera; Walter; Yolanda; Zachary; Beatrice; Dominic;
Florence; Gabriel; Harriet; Isaac; Jasmine; Kevin; Lucas; Monica; Nathan; Patricia; Roland;
Stella; Tobias; Vincent; Abigail; Bernard; Cecilia; Douglas; Esther; Felix; Gloria; Hector;
Ingrid; Joanna; Leonard; Miriam; Nicholas; Penelope; Reginald; Sebastian; Theodore; Valerie;
Winston
""")

LAST_NAMES = _list("""
Adams; Baker; Carter; Diaz; Edwards; Fischer; Garcia; Hughes; Ivanov; Johnson; Kowalski; Lopez;
Miller; Nguyen; O'Brien; Patel; Quigley; Rodriguez; Smith; Taylor; Underwood; Vasquez; Williams;
Young; Zimmerman; Anderson; Bennett; Chen; Davidson; Ellison; Foster; Grant; Harrison; Jackson;
Kim; Lawrence; Morgan; Novak; Olsen; Peterson; Robinson; Schmidt; Thompson; Walker; Washington;
Yamamoto; Abernathy; Blackwood; Castellano; Delgado; Fitzgerald; Goldberg; Hernandez; Jankowski;
Kaplan; Lindqvist; McCarthy; Nakamura; Papadopoulos; Rosenberg; Sullivan; Whitaker
""")

PLACES = _list("""
London; Paris; Boston; Chicago; Denver; Seattle; Tokyo; Berlin; Madrid; Rome; Vienna; Dublin;
Sydney; Toronto; Cairo; Lisbon; Oslo; Stockholm; Helsinki; Prague; Athens; Istanbul; Mumbai;
Singapore; Bangkok; Nairobi; Lima; Bogota; Havana; Montreal; Vancouver; Houston; Dallas;
Phoenix; Atlanta; Miami; Detroit; Philadelphia; Baltimore; Portland; Sacramento; Pittsburgh;
Cincinnati; Albuquerque; Minneapolis; Edinburgh; Glasgow; Manchester; Liverpool; Birmingham;
Amsterdam; Brussels; Geneva; Zurich; Munich; Hamburg; Milan; Naples; Barcelona; Valencia;
Warsaw; Budapest; Bucharest; Copenhagen; Melbourne; Auckland; Jakarta; Manila; Seoul; Shanghai;
Beijing; Delhi; Karachi; Tehran; Baghdad; Jerusalem; Casablanca; Lagos; Johannesburg
""")

REGIONS = _list("""
Spain; France; Germany; Italy; Norway; Sweden; Finland; Poland; Greece; Turkey; India; China;
Japan; Australia; Canada; Mexico; Brazil; Argentina; Chile; Peru; Egypt; Kenya; Nigeria; South
Africa; New Zealand; California; Texas; Florida; Virginia; Massachusetts; Colorado; Oregon;
Pennsylvania; Louisiana; Minnesota; Alaska; Hawaii; Scotland; Wales; Ireland; Portugal; the
Netherlands; Switzerland; Austria; Denmark; Iceland; Vietnam; Thailand; Indonesia; the
Philippines
""")

DAYS = _list("""
Monday; Tuesday; Wednesday; Thursday; Friday; Saturday; Sunday
""")

MONTHS = _list("""
January; February; March; April; May; June; July; August; September; October; November; December
""")

ORDINALS = _list("""
first; second; third; fourth; fifth; sixth; seventh; eighth; ninth; tenth; eleventh; twelfth;
thirteenth; fourteenth; fifteenth; sixteenth; seventeenth; eighteenth; nineteenth; twentieth;
twenty first; twenty second; twenty third; twenty fourth; twenty fifth; twenty sixth; twenty
seventh; twenty eighth; twenty ninth; thirtieth; thirty first
""")

THINGS = _list("""
book; umbrella; ticket; passport; jacket; sandwich; bicycle; laptop; camera; blanket; guitar;
mirror; lamp; suitcase; notebook; kettle; wallet; helmet; battery; charger; keyboard;
microphone; telescope; hammer; ladder; candle; pillow; carpet; thermometer; refrigerator;
dishwasher; calculator; envelope; newspaper; magazine; necklace; bracelet; screwdriver;
flashlight; backpack; coffee machine; alarm clock; washing machine; phone case; water bottle;
desk chair; garden hose; toaster; violin; trumpet; puzzle; painting; bookshelf; wheelbarrow;
parachute; compass; scarf; mitten; vacuum cleaner
""")

FOODS = _list("""
pizza; soup; salad; bread; cheese; pasta; rice; chicken; salmon; mushrooms; spinach; broccoli;
potatoes; carrots; onions; garlic; strawberries; blueberries; pineapple; watermelon; oranges;
lemons; chocolate cake; vanilla ice cream; yogurt; oatmeal; pancakes; scrambled eggs; lentils;
chickpeas; avocado; cucumber; tomato sauce; peanut butter; maple syrup; cinnamon; ginger tea;
black coffee; sparkling water; orange juice; hot chocolate; mashed potatoes; grilled vegetables;
noodles; dumplings; tacos; curry; roast beef; cranberries; walnuts; almonds; raspberry jam
""")

TOPICS = _list("""
your account; the weather; the schedule; the invoice; your subscription; the delivery; the
project; the budget; your password; the new policy; the train times; the football results; the
presentation; your appointment; the contract; the recipe; the museum; your insurance; the
repair; the warranty; the election; the concert; the experiment; the software update; your
reservation; the missing luggage; the interview; the translation; the history of Rome; black
holes; photosynthesis; renewable energy; electric cars; classical music; the stock market; the
solar system; volcanoes; medieval castles; machine learning; ancient Egypt; the human heart;
ocean currents; migratory birds; quantum physics; gardening
""")

ADJECTIVES = _list("""
good; great; small; large; quiet; noisy; bright; dark; warm; cold; quick; slow; easy; difficult;
cheap; expensive; useful; strange; beautiful; ugly; clean; dirty; heavy; light; simple;
complicated; friendly; rude; careful; careless; gentle; rough; ancient; modern; famous; unknown;
dangerous; safe; healthy; tired; hungry; thirsty; comfortable; delicious; terrible; wonderful;
ordinary; enormous; tiny; narrow; wide; smooth; sharp; fragile; generous; curious; nervous;
cheerful; grumpy; peculiar; brilliant; mysterious; reliable; temporary; permanent; reasonable;
ridiculous
""")

ANIMALS = _list("""
dog; cat; horse; rabbit; squirrel; elephant; giraffe; penguin; dolphin; octopus; butterfly;
tortoise; crocodile; kangaroo; hedgehog; woodpecker; hummingbird; salamander; rhinoceros;
leopard; sheep; goose; mouse; beaver; ostrich
""")

JOBS = _list("""
teacher; doctor; engineer; lawyer; plumber; electrician; journalist; architect; carpenter;
dentist; farmer; pilot; librarian; mechanic; musician; photographer; scientist; translator;
waiter; accountant; veterinarian; psychologist; astronaut; firefighter; receptionist
""")

STREETS = _list("""
Main Street; Oak Avenue; Park Road; Elm Street; Station Road; Washington Boulevard; Church Lane;
Mill Road; Victoria Street; Highland Avenue; River Road; Sunset Boulevard; King Street; Queen
Street; Maple Drive; Lincoln Avenue; Bridge Street; Market Square; Harbour Way; Cedar Court
""")

BUILDINGS = _list("""
library; post office; train station; bus stop; hospital; pharmacy; bank; museum; hotel;
supermarket; bakery; theater; stadium; airport; police station; school; university; church;
restaurant; gas station; parking garage; swimming pool; city hall; harbor; art gallery; coffee
shop
""")

WEATHER = _list("""
sunny; cloudy; rainy; windy; foggy; stormy; snowy; partly cloudy; mostly clear; humid; dry;
freezing; warm and pleasant; cold and wet; mild; overcast with light rain; hot with a chance of
thunderstorms
""")

VERBS_PAST = _list("""
found; lost; bought; sold; painted; repaired; broke; carried; borrowed; returned; photographed;
ordered; described; hid; dropped; cleaned; admired; forgot; measured; wrapped; stole;
recognized; recommended; examined; donated
""")

SHORT = _list("""
Yes.; No.; Okay.; Sure.; Thanks.; Hello.; Hi.; Goodbye.; Bye.; Right.; Great.; Perfect.; Sorry.;
Please.; Maybe.; Exactly.; Absolutely.; Certainly.; Of course.; No problem.; Thank you.; Hello
there.; Hi there.; No, thanks.; Yes, please.; Good morning.; Good evening.; Good night.; See
you.; Take care.; Well done.; All right.; Not yet.; Never mind.; One moment.; Just a second.; I
see.; Got it.; Me too.; Why not?; Really?; Pardon?; What?; When?; Where?; Who is it?; How many?;
How much?; Which one?; What time?; Are you sure?; Is that so?; Wait!; Stop!; Look!; Careful!;
Congratulations!; Welcome!; Welcome back.; Excuse me.; I agree.; I understand.; Sounds good.;
That works.; Not really.; I think so.; I hope so.; I doubt it.; Good idea.; Nice try.; Come in.;
Sit down.; Go ahead.; Hold on.; Keep going.; Turn left.; Turn right.; Go straight.; Press one.;
Press star.; Try again.; It depends.; You're welcome.; My pleasure.; Let me see.; Let me check.;
Let's go.; Here you go.; There it is.; That's right.; That's wrong.; That's it.; That's all.;
Not at all.; Any questions?; Anything else?; Are you there?; Can you hear me?; How are you?; I'm
fine.; I'm here.; I'm listening.; I'm not sure.; I don't know.; I can't say.; It's done.; It's
ready.; It's late.; Almost there.; Time's up.; Good luck.; Happy birthday!; Sweet dreams.; Hmm.;
Oh.; Ah, okay.; Well.; Uh huh.; Oh no!; Oh, great.; Wow!; Yes, sir.; No, ma'am.; Yes and no.;
Absolutely not.; Very good.; Fair enough.; Same here.; Next question.; First of all.; By the
way.; For example.; As you wish.; Right away.; Later today.; Tomorrow morning.; Last week.; Next
Friday.; Two minutes.; Half an hour.; Ten percent.; Twenty dollars.; Room five.; Gate twelve.;
Page three.; Line two.; Step one.; Number four.; Door closed.; Call ended.; Message sent.; Alarm
set.; Timer done.; Light on.; Volume up.; Paused.; Muted.; Connected.; Cancelled.; Saved.;
Deleted.; Loading.; Done.; Ready.; Error.
""")
